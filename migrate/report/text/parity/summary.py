"""Summary of `migrate parity` on a terminal, and its JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from migrate.report.text.parity import words
from migrate.report.text.parity.layers import layers_summary
from migrate.report.text.parity.sections import sections_summary
from migrate.report.text.plain import plain_value
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from migrate.parity.ground.results import Parity

_SHOWN_SECONDS = 0.05  # shorter parts of a comparison are not printed
FORMAT = 1  # of the JSON; report/schema/parity.json describes it


def parity_summary(parity: Parity) -> list[RenderableType]:
    """Return the verdict, what was compared, the module tree and what was compared beside it."""
    from rich.text import Text

    style = "bold green" if parity.matches else "bold red"
    lines: list[RenderableType] = [
        Text.assemble((f"{parity.verdict.value}: ", style), words.sentence(parity.sentence)),
        "",
        _header(parity),
    ]
    lines.extend(Text(f"note: {note}", "dim") for note in _notes(parity))
    lines.append("")
    lines.extend(layers_summary(parity))
    lines.extend(sections_summary(parity.sections))
    if any(seconds >= _SHOWN_SECONDS for _, seconds in parity.seconds):
        spent = ", ".join(
            f"{part} {seconds:.1f} s"
            for part, seconds in parity.seconds
            if seconds >= _SHOWN_SECONDS
        )
        lines.extend(("", Text(f"time: {spent}", "dim")))
    return lines


def _header(parity: Parity) -> Table:
    from rich.text import Text

    table = plain_table()
    for letter, facts in words.sides(parity):
        what = Text.assemble(
            (facts.framework, "bold"), f" {facts.target}  ", (words.facts(facts), "dim")
        )
        table.add_row("reference" if letter == "truth" else letter, what)
    if parity.truth is None:
        table.add_row("reference", "none: B is measured against A")
    table.add_row("limits", f"{escape(parity.profile)} [dim](sources: --html, --json)[/dim]")
    layouts = [f"{letter} has another layout: {text}" for letter, text in words.all_layouts(parity)]
    if layouts:
        table.add_row("layouts", Text("\n".join(layouts)))
    table.add_row("inputs", Text("\n".join(parity.inputs)))
    table.add_row(
        "floor", f"{words.size(parity.floor)} relative L2 between two correct runs, at the outputs"
    )
    return table


def _notes(parity: Parity) -> Iterator[str]:
    yield from words.notes(parity)
    for letter, facts in words.sides(parity):
        for note in facts.notes:
            yield f"{letter}: {note}"


def parity_as_json(parity: Parity) -> dict[str, Any]:
    """Return all of the comparison as plain values, as report/schema/parity.json describes them.

    What is not finite becomes a string, as JSON has no such numbers: "nan", "inf", "-inf".
    """
    value = dataclasses.asdict(parity)
    return {
        "format": FORMAT,
        "matches": parity.matches,
        "verdict": parity.verdict.value,
        "sentence": parity.sentence,
        **_plain(value, "profile", "limits", "inputs", "floor", "notes"),
        "sides": _plain(value, "a", "b", "truth"),
        **_plain(value, "first", "causes"),
        "layers": plain_value(value["layers"]),
        "sections": [
            {
                "name": section["name"],
                "passed": of.passed,
                "checks": plain_value(section["checks"]),
                "curves": plain_value(dict(section["curves"])),
                "notes": list(section["notes"]),
            }
            for section, of in zip(value["sections"], parity.sections, strict=True)
        ],
        "histograms": [
            {"layer": name, "edges": plain_value(edges), "a": list(a), "b": list(b)}
            for name, edges, a, b in parity.histograms
        ],
        "seconds": plain_value(dict(parity.seconds)),
    }


def _plain(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: plain_value(value[name]) for name in names}
