"""Result of `migrate train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainComparison:
    """Comparison of the program with the script's recorded run.

    Attributes:
        name: "gradients", "losses", "learning rates", "weights" or "data".
        same: whether they are equal within the limit.
        worst: the largest relative difference; None where values are compared exactly.
        limit: the limit.
        what: what was compared, or the first difference.
    """

    name: str
    same: bool
    worst: float | None = None
    limit: float | None = None
    what: str = ""


@dataclass(frozen=True)
class TrainedProgram:
    """A written program.

    Attributes:
        folder: its folder.
        files: its files.
        script: the script.
        comparisons: comparisons with the recorded run; empty without a proof.
        left: parts of the script that the program does not have: position and statement.
        notes: what else to know.
        error: why the program did not run; "" if it ran.
    """

    folder: Path
    files: tuple[str, ...]
    script: Path
    comparisons: tuple[TrainComparison, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def same(self) -> bool:
        """Whether the program ran, and every comparison holds."""
        return not self.error and all(comparison.same for comparison in self.comparisons)
