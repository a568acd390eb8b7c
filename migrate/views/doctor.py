"""What `migrate doctor` shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.doctor import Diagnosis, Status
from migrate.views.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

COLOURS = {
    Status.OK: "green",
    Status.MISSING: "dim",
    Status.WARNING: "yellow",
    Status.FAIL: "red",
}


def diagnosis_summary(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Yield the checks as a table, and the verdict."""
    table = plain_table("", "what", "found", "what to do")
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
