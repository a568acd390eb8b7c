"""Terminal view and JSON of `migrate train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from migrate.counts import many
from migrate.report.text.plain import plain_value
from migrate.report.text.tables import plain_table
from migrate.train.results import (
    INTENDED,
    MATCH,
    by_stage,
    has_two_meanings,
    limited,
    meanings,
    stages,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from migrate.train.results import ProgramProof, TrainComparison, TrainedProgram

FORMAT = 1  # of the JSON


def verdict(program: TrainedProgram | ProgramProof) -> str:
    """Return the verdict in words, as `migrate prove` and `migrate parity` say it."""
    if program.error:
        return "does not run"
    if not program.comparisons:
        return "not compared"
    if word := limited(program.comparisons):
        return word
    return MATCH if program.same else "differs"


def _headline(program: TrainedProgram | ProgramProof) -> str:
    """The verdict on the training, and on names of the interface if they are not the script's."""
    apart = " except names" if has_two_meanings(program.comparisons) and not program.error else ""
    return f"{verdict(program)}{apart}: "


def train_summary(program: TrainedProgram) -> list[RenderableType]:
    """Return the verdict, the files, the comparisons, and what the program does not have."""
    from rich.text import Text

    style = "bold green" if program.same and program.comparisons else "bold red"
    lines: list[RenderableType] = [
        Text.assemble((_headline(program), style), f"{program.script} in {program.folder}"),
        "",
        f"  {', '.join(program.files)}",
    ]
    lines += [Text(f"  note: {note}") for note in program.notes]
    if program.error:
        lines += ["", Text(program.error, "bold red")]
    if program.comparisons:
        lines += ["", _table(program.comparisons), *_legend(program.comparisons)]
    lines += [Text(f"  cause ({c.name}): {c.cause}") for c in program.comparisons if c.cause]
    if program.left:
        lines += [
            "",
            f"Not in the program: {many(len(program.left), 'statement')} of the training loop",
        ]
        lines += [Text(f"  {statement}") for statement in program.left]
    return lines


def proof_summary(proof: ProgramProof) -> list[RenderableType]:
    """Return the comparisons by stage, the causes of differences, and the verdict."""
    from rich.text import Text

    lines: list[RenderableType] = []
    if proof.comparisons:
        lines += [_table(proof.comparisons), *_legend(proof.comparisons), ""]
    for stage, verdict_of in stages(proof.comparisons).items():
        fine = verdict_of.removesuffix(INTENDED) == MATCH
        lines.append(Text(f"{stage}: {verdict_of}", "green" if fine else "red"))
    lines += [Text(f"cause ({c.name}): {c.cause}") for c in proof.comparisons if c.cause]
    lines += [Text(f"note: {note}") for note in proof.notes]
    if proof.error:
        lines.append(Text(proof.error, "bold red"))
    style = "bold green" if proof.same else "bold red"
    updates = many(proof.updates, "update")
    lines.append(
        Text.assemble((_headline(proof), style), f"{proof.script} and {proof.folder}, {updates}")
    )
    return lines


def proof_as_json(proof: ProgramProof) -> dict[str, Any]:
    """Return the proof as JSON."""
    return {
        "format": FORMAT,
        "verdict": verdict(proof),
        "script": str(proof.script),
        "folder": str(proof.folder),
        "updates": proof.updates,
        "stages": stages(proof.comparisons),
        "comparisons": [_as_json(comparison) for comparison in proof.comparisons],
        "notes": list(proof.notes),
        "error": proof.error,
    }


def _table(comparisons: tuple[TrainComparison, ...]) -> Table:
    table = plain_table("stage", "compared", "verdict", "largest difference", "limit", "")
    for comparison in by_stage(comparisons):
        table.add_row(
            comparison.stage,
            comparison.name,
            comparison.verdict,
            "" if comparison.worst is None else f"{comparison.worst:.1e}",
            "" if comparison.limit is None else f"{comparison.limit:.1e}",
            comparison.what,
        )
    return table


def _legend(comparisons: tuple[TrainComparison, ...]) -> list[Text]:
    """Say what the stages in a table are."""
    from rich.text import Text

    return [Text(line, "dim") for line in meanings(comparisons)]


def train_as_json(program: TrainedProgram) -> dict[str, Any]:
    """Return the result as JSON. A difference that is no number is the string "inf"."""
    return {
        "format": FORMAT,
        "verdict": verdict(program),
        "script": str(program.script),
        "folder": str(program.folder),
        "files": list(program.files),
        "stages": stages(program.comparisons),
        "comparisons": [_as_json(comparison) for comparison in program.comparisons],
        "left": list(program.left),
        "notes": list(program.notes),
        "error": program.error,
    }


def _as_json(comparison: TrainComparison) -> dict[str, Any]:
    return {
        "stage": comparison.stage,
        "name": comparison.name,
        "same": comparison.same,
        "largest_difference": plain_value(comparison.worst),
        "limit": comparison.limit,
        "what": comparison.what,
        "cause": comparison.cause,
    }
