"""What a command returns, and how it reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reporter:
    """How a command that runs reports its progress.

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
