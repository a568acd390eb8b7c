"""What is said of a reference that is not float64 throughout."""

from __future__ import annotations

from collections.abc import Iterable

# The first words of the note.
REFERENCE = "the reference runs in float32"


def narrower(notes: Iterable[str]) -> str:
    """The note that the reference is not float64 throughout; "" where none says so."""
    return next((one for one in notes if one.startswith(REFERENCE)), "")
