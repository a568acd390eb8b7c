"""The hazards, one a file; a file put here is a hazard, nothing else names it."""

from __future__ import annotations

from functools import cache

from migrate.check.hazard import Hazard
from migrate.units import classes_in


@cache
def all_hazards() -> tuple[Hazard, ...]:
    """Return an instance of every hazard, in the order of their codes.

    Raises:
        TypeError: two hazards have the same code or name.
    """
    hazards: dict[str, Hazard] = {}
    for value in classes_in(__name__, __path__):
        if issubclass(value, Hazard):
            if value.code in hazards:
                raise TypeError(f"two hazards are {value.code}")
            hazards[value.code] = value()
    names = [hazard.name for hazard in hazards.values()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TypeError(f"two hazards share a name: {twice}")
    return tuple(hazards[code] for code in sorted(hazards))
