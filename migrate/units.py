"""Classes that the modules of a package define: a file in the package is found without registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator


def classes_in(package: str, path: Iterable[str]) -> Iterator[type]:
    """Yield each class that a module of a package, or of one below it, defines itself, not imports.

    Args:
        package: the dotted name of the package.
        path: its `__path__`.
    """
    for info in pkgutil.walk_packages(path, f"{package}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and value.__module__ == info.name:
                yield value
