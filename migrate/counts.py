"""Counted things as people write them."""

from __future__ import annotations


def many(count: int, noun: str, several: str = "") -> str:
    """Return "1 layer", "2 layers", "1,200 layers"; `several` is a plural that does not just add an s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"
