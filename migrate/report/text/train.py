"""Terminal view and JSON of `migrate train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from migrate.counts import many
from migrate.report.text.plain import plain_value
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from migrate.train.results import TrainComparison, TrainedProgram

FORMAT = 1  # of the JSON


def verdict(program: TrainedProgram) -> str:
    """Return the verdict in words."""
    if program.error:
        return "DOES NOT RUN"
    if not program.comparisons:
        return "NOT COMPARED"
    return "SAME" if program.same else "DIFFERENT"


def train_summary(program: TrainedProgram) -> list[RenderableType]:
    """Return the verdict, the files, the comparisons, and what is left by hand."""
    from rich.text import Text

    style = "bold green" if program.same and program.comparisons else "bold red"
    lines: list[RenderableType] = [
        Text.assemble((f"{verdict(program)}: ", style), f"{program.script} in {program.folder}"),
        "",
        f"  {', '.join(program.files)}",
    ]
    lines += [Text(f"  note: {note}") for note in program.notes]
    if program.error:
        lines += ["", Text(program.error, "bold red")]
    if program.comparisons:
        lines += ["", _table(program.comparisons)]
    if program.left:
        lines += ["", f"Left by hand: {many(len(program.left), 'statement')} of the training loop"]
        lines += [Text(f"  {statement}") for statement in program.left]
    return lines


def _table(comparisons: tuple[TrainComparison, ...]) -> Table:
    table = plain_table("compared", "verdict", "largest difference", "limit", "")
    for comparison in comparisons:
        table.add_row(
            comparison.name,
            "same" if comparison.same else "differs",
            "" if comparison.worst is None else f"{comparison.worst:.1e}",
            "" if comparison.limit is None else f"{comparison.limit:.1e}",
            comparison.what,
        )
    return table


def train_as_json(program: TrainedProgram) -> dict[str, Any]:
    """Return the result as JSON. A difference that is no number is the string "inf"."""
    return {
        "format": FORMAT,
        "verdict": verdict(program).lower(),
        "script": str(program.script),
        "folder": str(program.folder),
        "files": list(program.files),
        "comparisons": [
            {
                "name": comparison.name,
                "same": comparison.same,
                "largest_difference": plain_value(comparison.worst),
                "limit": comparison.limit,
                "what": comparison.what,
            }
            for comparison in program.comparisons
        ],
        "left": list(program.left),
        "notes": list(program.notes),
        "error": program.error,
    }
