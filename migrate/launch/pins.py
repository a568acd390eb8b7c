"""Exact versions that a job installs on each host."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import yaml

from migrate.launch.framework import Framework

TABLE = Path(__file__).with_name("pins.yaml")


def pins(framework: Framework, imports: Collection[str] = ()) -> list[str]:
    """Return the requirements of a framework and of this project, each with its exact version.

    Args:
        framework: the package that drives the TPU.
        imports: packages that the program imports.
    """
    table = yaml.safe_load(TABLE.read_text())
    loads_torch = framework is Framework.JAX and "torch" in imports
    return [*table[str(framework)], *(table["torch"] if loads_torch else []), *table["all"]]
