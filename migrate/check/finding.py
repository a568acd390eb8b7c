"""Findings of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from migrate.check.severity import Severity
from migrate.syntax.origins import Message, Related

UNREADABLE = "XLA000"
UNUSED_IGNORE = "XLA001"


class Fix(StrEnum):
    """Whether `migrate rewrite` fixes a finding."""

    NONE = "none"
    SAFE = "safe"  # the rewritten script computes the same
    UNSAFE = "unsafe"  # the same only if the condition of the rule holds


@dataclass(frozen=True)
class Finding:
    """A hazard at a location.

    Args:
        path: the file, as it was named or found.
        line, column: start of the code, both from 1.
        end_line, end_column: end of the first line of the code; the column is the one after the last.
        code: the hazard's code, or `UNREADABLE` or `UNUSED_IGNORE`.
        name: the hazard's name.
        severity: severity at this location.
        message: what happens on a TPU, and what to do, a `Message`.
        cell: cell of a notebook, from 1, all cells counted. `line` is then a line of the cell.
        file_line: line in the file of the notebook, from 1.
        fix: whether `migrate rewrite` fixes the hazard, and how safely.
        condition: completes "the fix is right only if …". Empty unless `fix` is `Fix.UNSAFE`.
        is_shown: whether `migrate rewrite` shows the finding although it is information.
        subject: name of the reported construct in the catalogue. Empty if it is no name.
        caller: `path:line` of the call in another file by which a training step runs the code. Empty if the
            step is in this file.
        about: lines of this file that the finding is about. See `Hit`.
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
    condition: str = ""
    is_shown: bool = False
    subject: str = ""
    caller: str = ""
    about: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Keep the lines that the text names as data."""
        object.__setattr__(self, "message", Message.of(self.message))

    @property
    def related(self) -> tuple[Related, ...]:
        """The lines that the message names."""
        return Message.of(self.message).related

    @property
    def text(self) -> Message:
        """The message, with the call that leads to the code."""
        message = Message.of(self.message)
        return message.ended(f" (called from {self.caller})") if self.caller else message

    @property
    def place(self) -> str:
        """The location, as shown after the path."""
        if self.cell is None:
            return f"{self.line}:{self.column}"
        return f"cell {self.cell}:line {self.line}"
