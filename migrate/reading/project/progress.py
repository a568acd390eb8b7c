"""How those who work at many files tell how far they are."""

from __future__ import annotations

from typing import Protocol


class Tell(Protocol):
    """Is told what is being done, and where files are worked at, how many are done, of how many."""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        """Take note of it."""


def silent(what: str, done: int = 0, total: int = 0) -> None:
    """Tell nothing."""
