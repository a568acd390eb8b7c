"""Counted things as people write them."""

from __future__ import annotations

from collections.abc import Sequence


def many(count: int, noun: str, several: str = "") -> str:
    """Return "1 layer", "2 layers", "1,200 layers"; `several` is a plural that does not just add an s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def binary_size(count: float) -> str:
    """Return "12.3 MiB", in powers of 1024, as the memory of a device is counted."""
    value, unit = scaled(count, 1024, ("B", "KiB", "MiB", "GiB"))
    digits = {"B": 0, "GiB": 2}.get(unit, 1)
    return f"{value:.{digits}f} {unit}"


def scaled(count: float, base: int, units: Sequence[str]) -> tuple[float, str]:
    """Return a number in the largest of `units` of which it has one, each `base` times the one before."""
    power = 0
    while power + 1 < len(units) and count >= base ** (power + 1):
        power += 1
    return count / base**power, units[power]
