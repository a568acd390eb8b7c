"""Exact versions that a job installs on each host."""

from __future__ import annotations

from pathlib import Path

import yaml

from migrate.launch.framework import Framework

TABLE = Path(__file__).with_name("pins.yaml")


def pins(framework: Framework) -> list[str]:
    """Return the requirements of a framework and of this project, each with its exact version."""
    table = yaml.safe_load(TABLE.read_text())
    return [*table[str(framework)], *table["all"]]


def requirements(framework: Framework, wheel: str) -> str:
    """Return the text of requirements.txt.

    Args:
        framework: the package that drives the TPU.
        wheel: the path of this project's wheel in the job's folder.
    """
    return "\n".join([*pins(framework), f"./{wheel}"]) + "\n"
