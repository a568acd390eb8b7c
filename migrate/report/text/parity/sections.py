"""Comparisons besides the layers, on a terminal: one line if passed, all rows if not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from migrate.report.text.parity import words
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from migrate.parity.ground.results import ParityCheck, Section

SHOWN = 8  # rows of a section that failed
FEW = 4  # a section that passed shows its rows up to this many


def sections_summary(sections: Sequence[Section]) -> Iterator[RenderableType]:
    """Yield each section: its verdict, the rows that tell it, its notes."""
    for section in sections:
        yield ""
        yield _title(section)
        rows = [check for check in section.checks if not check.passed]
        if not rows and len(section.checks) <= FEW:
            rows = list(section.checks)
        if rows:
            source = words.one_source(section)
            yield _table(rows[:SHOWN], with_source=not source)
            if source:
                yield _line(f"limit from: {source}")
        if len(rows) > SHOWN:
            yield _line(f"… {len(rows) - SHOWN} more failed (all are in --json and --html)")
        for note in section.notes:
            yield _line(note)


def _title(section: Section) -> RenderableType:
    from rich.text import Text

    failed = sum(not check.passed for check in section.checks)
    mark, style = ("✓", "green") if section.passed else ("✗", "bold red")
    title = Text.assemble((f"{mark} ", style), (section.name, "bold"), "  ")
    count = words.many(len(section.checks), "check")
    if failed:
        return title.append(f"{failed} of {count} failed", style)
    title.append(f"{count}, all passed" if len(section.checks) > 1 else count)
    near = words.nearest(section) if len(section.checks) > FEW else None
    if near is not None:
        values = [value for value in (near.a, near.b) if value is not None]
        most = max(values)
        said = f"; nearest to its limit: {near.name}, {words.figure(most)} of {words.figure(near.limit)}"
        title.append(said, "dim")
    return title


def _line(text: str) -> RenderableType:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, "dim"), (0, 0, 0, 2))


def _table(checks: Sequence[ParityCheck], *, with_source: bool) -> RenderableType:
    from rich.padding import Padding

    return Padding(_rows(checks, with_source), (0, 0, 0, 2))


def _rows(checks: Sequence[ParityCheck], with_source: bool) -> Table:
    from rich.text import Text

    sides = any(check.a is not None for check in checks)
    table = plain_table(
        "",
        *(("A",) if sides else ()),
        "B" if sides else "value",
        "limit",
        "from" if with_source else "",
    )
    for check in checks:
        style = "" if check.passed else "bold red"
        note = f"({check.note})" if check.note else ""
        source = f"{check.source} {note}" if with_source else note
        table.add_row(
            Text(check.name),
            *((words.figure(check.a),) if sides else ()),
            Text(words.figure(check.b), style),
            words.limit(check),
            Text(source.strip(), "dim"),
        )
    return table
