"""Results of commands, and receivers of their progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reporter:
    """Receivers of the progress of a command.

    Attributes:
        moved: takes the bytes done and their total.
        quiet: whether models that are run report no progress.
        report: takes a line.
    """

    moved: Callable[[int, int], None]
    quiet: bool
    report: Callable[[str], None]


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        code: the exit code.
        summary: what to print.
        values: the same as plain values, for --json.
    """

    code: int
    summary: Any
    values: dict[str, Any]
