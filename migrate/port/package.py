"""The package in the folder of a port: its import, and its layers stacked and apart."""

from __future__ import annotations

import importlib.util
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def package_of(folder: Path) -> Iterator[Any]:
    """The package in the folder of a port."""
    name = f"_port_{secrets.token_hex(8)}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(package)
        yield package
    finally:
        for module in [
            module for module in sys.modules if module == name or module.startswith(f"{name}.")
        ]:
            del sys.modules[module]


def stacked(package: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables as a port's model has them: its repeated layers may be stacked."""
    stack = getattr(package, "stack_layers", dict)
    arrays: dict[str, Any] = stack(variables)
    return arrays


def unstacked(package: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of a port's model as its files have them: each layer by itself."""
    unstack = getattr(package, "unstack_layers", dict)
    arrays: dict[str, Any] = unstack(variables)
    return arrays
