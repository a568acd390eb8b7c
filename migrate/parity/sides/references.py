"""Note on a reference that is not float64 throughout."""

from __future__ import annotations

from collections.abc import Iterable

# The first words of the note.
REFERENCE = "the reference runs in float32"


def narrower(notes: Iterable[str]) -> str:
    """Note that the reference is not float64 throughout; "" if there is none."""
    return next((note for note in notes if note.startswith(REFERENCE)), "")
