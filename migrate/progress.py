"""Progress of long work: what is being done, and how much of it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Progress(Protocol):
    """Receiver of progress."""

    def __call__(self, what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
        """Record the work and how much is done.

        Args:
            what: the work; the same text means the same work.
            done: the units that are done.
            total: all units; 0: unknown.
            unit: what is counted, such as "step"; "B" for bytes.
        """


def no_progress(what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
    """Report nothing."""


@dataclass
class SharedCount:
    """Progress of several kinds of work that share one count.

    Attributes:
        progress: the receiver.
        total: all units.
        unit: what is counted.
        done: the units that are done; whoever finishes a unit adds it.
    """

    progress: Progress
    total: int
    unit: str
    done: int = 0

    def __call__(self, what: str) -> None:
        """Report what is being done, with the count."""
        self.progress(what, self.done, self.total, self.unit)
