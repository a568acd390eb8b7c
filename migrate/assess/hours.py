"""Assumed hours for each kind of work: the defaults, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from migrate.assess.tables import read_table
from migrate.check.manual_work import ManualWork

SHIPPED = Path(__file__).with_name("hours.yaml")


@dataclass(frozen=True)
class Hours:
    """Assumptions, in hours.

    Attributes:
        file: file of the figures.
        setup: once for a project.
        look: hours for each location that only needs a check.
        kinds: hours for each kind of work: the first location and each further one.
    """

    file: Path
    setup: float
    look: float
    kinds: Mapping[ManualWork, tuple[float, float]]

    def of(self, work: ManualWork, places: int) -> float:
        """Hours for so many places of a kind."""
        first, further = self.kinds[work]
        return first + further * (places - 1) if places else 0.0


def read_hours(file: Path = SHIPPED) -> Hours:
    """Read a table of hours; it names every kind of work.

    Raises:
        AssessError: it cannot be read, or says what it cannot mean; with key and line.
    """
    parts = read_table(file, SHIPPED).table({"setup", "look", "kinds"}, set())
    kinds = parts["kinds"].table({kind.value for kind in ManualWork}, set())
    pairs = {ManualWork(name): entry.numbers(2) for name, entry in kinds.items()}
    return Hours(
        file,
        parts["setup"].number(),
        parts["look"].number(),
        {work: (first, further) for work, (first, further) in pairs.items()},
    )
