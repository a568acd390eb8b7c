"""Counted things as people write them."""

from __future__ import annotations


def many(count: int, one: str, several: str = "") -> str:
    """As "1 layer", "2 layers", "1,200 layers"; `several` where more are not `one` with an s."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
