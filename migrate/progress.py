"""How work that takes long reports its progress: what is being done, and how much of it is done."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receiver of progress."""

    def __call__(self, what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
        """Take note of the work and of how much is done.

        Args:
            what: the work; the same text means the same work.
            done: the units that are done.
            total: all units; 0: unknown.
            unit: what is counted, such as "step"; "B" for bytes.
        """


def no_progress(what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
    """Report nothing."""
