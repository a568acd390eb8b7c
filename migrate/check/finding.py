"""Findings of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from migrate.check.severity import Severity

UNREADABLE = "XLA000"
UNUSED_IGNORE = "XLA001"


class Fix(StrEnum):
    """Whether `migrate rewrite` fixes a finding."""

    NONE = "none"
    SAFE = "safe"  # the rewritten script computes the same
    UNSAFE = "unsafe"  # the same where what the page of the rule names holds


@dataclass(frozen=True)
class Finding:
    """A hazard at a place.

    Args:
        path: the file, as it was named or found.
        line, column: where, both from 1.
        end_line, end_column: where its first line ends; the column is the one after the last.
        code: the hazard's code, or `UNREADABLE` or `UNUSED_IGNORE`.
        name: the hazard's name.
        severity: how bad it is here.
        message: what happens on a TPU, and what to do.
        cell: of a notebook, from 1, all its cells counted; lines are in it then.
        file_line: where in the file of a notebook the line is written, from 1.
        fix: whether `migrate rewrite` mends it, and how safely.
        is_shown: whether `migrate rewrite` shows it though it is information.
        subject: the name of what is reported, as the catalogue has it. Empty if that is no name.
    """

    path: Path
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    name: str
    severity: Severity
    message: str
    cell: int | None = None
    file_line: int | None = None
    fix: Fix = Fix.NONE
    is_shown: bool = False
    subject: str = ""

    @property
    def place(self) -> str:
        """The location, as shown after the path."""
        if self.cell is None:
            return f"{self.line}:{self.column}"
        return f"cell {self.cell}:line {self.line}"
