"""Terminal view and JSON of `migrate doctor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.counts import many
from migrate.devices.report import DevicesReport
from migrate.doctor import Diagnosis, Status
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_FROM_A_CLONE = "pip install '."
COLORS = {
    Status.OK: "green",
    Status.MISSING: "dim",
    Status.OPTIONAL: "dim",
    Status.WARNING: "yellow",
    Status.FAIL: "red",
}


def diagnosis_summary(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Yield the checks as a table, and the verdict."""
    table = plain_table("", "what", "found", "what to do")
    for check in diagnosis.checks:
        if diagnosis.light and check.status in (Status.MISSING, Status.OPTIONAL):
            continue  # the table of the commands has what to install
        color = COLORS[check.status]
        status = f"[{color}]{check.status.value}[/{color}]"
        table.add_row(status, escape(check.subject), escape(check.detail), escape(check.remedy))
    yield table
    yield from _commands(diagnosis)
    if failed := sum(check.status is Status.FAIL for check in diagnosis.checks):
        yield f"[red]{failed} to fix[/red]"


def _commands(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Yield the commands, each ready or not, and how many are."""
    if not diagnosis.commands:
        return
    table = plain_table("", "command", "what is missing", "what to do")
    for entry in diagnosis.commands:
        status = "[green]ready[/green]" if entry.ready else "[yellow]not ready[/yellow]"
        table.add_row(status, entry.command, escape(entry.obstacle), escape(entry.remedy))
    yield table
    ready = sum(entry.ready for entry in diagnosis.commands)
    yield f"{ready} of {many(len(diagnosis.commands), 'command')} ready"
    if diagnosis.light:
        yield "No framework is installed: this is enough to rewrite, check and launch."
    if _FROM_A_CLONE in str(diagnosis):
        yield "Run each pip install '.[…]' above in a clone of tpu-migrate: no package index has it."


def diagnosis_as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the same as plain values."""
    return {
        "fit": diagnosis.fit,
        "checks": [dataclasses.asdict(check) for check in diagnosis.checks],
        "commands": [
            {"command": entry.command, "ready": entry.ready}
            | {"obstacle": entry.obstacle, "remedy": entry.remedy}
            for entry in diagnosis.commands
        ],
    }


def devices_summary(report: DevicesReport) -> Iterator[RenderableType]:
    """Yield the chips, the programs that they ran, and the verdict on them."""
    chips = plain_table("", "chip", "kind", "where", "host", "finding")
    for chip in report.chips:
        bad = report.bad(chip.id)
        status = _status(not bad)
        kinds = ", ".join(dict.fromkeys(finding.kind for finding in bad))
        chips.add_row(status, str(chip.id), chip.kind, escape(chip.where), escape(chip.host), kinds)
    programs = plain_table("", "program", "the same bits on", "checksum", "from float64", "limit")
    for program in report.programs:
        right = program.same == len(report.chips) and (program.error or 0.0) <= program.limit
        programs.add_row(
            _status(right),
            program.name,
            f"{program.same} of {len(report.chips)} chips",
            program.checksum,
            "" if program.error is None else f"{program.error:.1e}",
            f"{program.limit:g}",
        )
    if report.chips:
        yield chips
        yield programs
    yield from (f"[dim]{escape(note)}[/dim]" for note in report.notes)
    for finding in report.findings:
        yield f"[red]{escape(finding.text)}[/red]\n  → {escape(finding.remedy)}"
    if report.sound:
        yield (
            f"{len(report.chips)} chips are sound: {len(report.programs)} programs, {report.repeats} "
            f"repeats, the same bits ({report.runtime}, {report.seconds:.0f} s)"
        )


def devices_as_json(report: DevicesReport) -> dict[str, Any]:
    """Return the same as plain values."""
    return {"sound": report.sound} | dataclasses.asdict(report)


def _status(right: bool) -> str:
    status = Status.OK if right else Status.FAIL
    return f"[{COLORS[status]}]{status.value}[/{COLORS[status]}]"
