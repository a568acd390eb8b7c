"""Counted things as people write them."""

from __future__ import annotations


def many(count: int, noun: str, several: str = "") -> str:
    """Return "1 layer", "2 layers", "1,200 layers"; `several` is a plural that does not just add an s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def binary_size(count: float) -> str:
    """Return "12.3 MiB", in powers of 1024, as the memory of a device is counted."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    digits = {"B": 0, "GiB": 2}.get(unit, 1)
    return f"{value:.{digits}f} {unit}"
