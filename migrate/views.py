"""Results as tables and lines for people, and as plain values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from migrate.doctor import Diagnosis, Status

if TYPE_CHECKING:
    from rich.console import RenderableType

    from migrate.rewrite.engine import Note, Rewrite

COLOURS = {
    Status.OK: "green",
    Status.MISSING: "dim",
    Status.WARNING: "yellow",
    Status.FAIL: "red",
}


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def rewrite_summary(done: Rewrite, written: Path | None) -> Iterator[RenderableType]:
    """Yield what was done to one script and what is left to do by hand.

    Args:
        done: the rewrite.
        written: where it was written; None if nothing was.
    """
    name = escape(str(done.path))
    if not done.changed and not done.findings:
        yield f"{name}: nothing to migrate"
        return
    if done.changed:
        target = f" → {escape(str(written))}" if written else ""
        yield f"[bold]{name}{target}[/bold]: {len(done.edits)} edits"
        yield _notes(done.edits)
    if done.findings:
        yield f"[yellow]{name}: {len(done.findings)} left to do by hand[/yellow]"
        yield _notes(done.findings, name)


def _notes(notes: tuple[Note, ...], name: str = "") -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", style="cyan", no_wrap=True)
    table.add_column(style="magenta", no_wrap=True)
    table.add_column(overflow="fold")
    for note in notes:
        place = f"{name}:{note.line}:{note.column}" if name else f"  {note.line}"
        table.add_row(place, note.rule, escape(note.message))
    return table


def rewrite_as_json(done: Rewrite, written: Path | None) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        "path": str(done.path),
        "changed": done.changed,
        "written": str(written) if written and done.changed else None,
        "edits": [dataclasses.asdict(note) for note in done.edits],
        "findings": [dataclasses.asdict(note) for note in done.findings],
    }


def diagnosis_summary(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Yield the checks as a table, and the verdict."""
    table = _table("", "what", "found", "what to do")
    for check in diagnosis.checks:
        colour = COLOURS[check.status]
        status = f"[{colour}]{check.status.value}[/{colour}]"
        table.add_row(status, escape(check.subject), escape(check.detail), escape(check.remedy))
    yield table
    failed = sum(check.status is Status.FAIL for check in diagnosis.checks)
    yield "fit for use" if diagnosis.fit else f"[red]{failed} to mend[/red]"


def diagnosis_as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the same as plain values."""
    return {"fit": diagnosis.fit, "checks": [dataclasses.asdict(c) for c in diagnosis.checks]}
