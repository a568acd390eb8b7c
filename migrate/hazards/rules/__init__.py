"""The hazards, one a file; a file put here is a hazard, nothing else names it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from migrate.hazards.hazard import Hazard


@cache
def all_hazards() -> tuple[Hazard, ...]:
    """Return an instance of every hazard, in the order of their codes.

    Raises:
        TypeError: two hazards have the same code or name.
    """
    found: dict[str, Hazard] = {}
    for info in pkgutil.iter_modules(__path__, f"{__name__}."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            defined_here = isinstance(value, type) and value.__module__ == info.name
            if defined_here and issubclass(value, Hazard):
                if value.code in found:
                    raise TypeError(f"two hazards are {value.code}")
                found[value.code] = value()
    names = [hazard.name for hazard in found.values()]
    if len(set(names)) < len(names):
        raise TypeError(f"two hazards share a name: {sorted(names)}")
    return tuple(found[code] for code in sorted(found))
