"""The table of `migrate weights`: a long note that several keys have stands once, below it."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from converters.mapping.plan import Outcome, Row
from migrate.report.text.weights import plan_table

LONG = "its input may be a flattened convolution: look at the model"


def shown(*notes: str) -> list[str]:
    names = ("first", "second", "third", "fourth")
    rows = [
        Row(f"{name}.weight", (2, 3 + number), "float32", Outcome.REFUSED, note=note)
        for number, (name, note) in enumerate(zip(names, notes, strict=False))
    ]
    console = Console(width=200, file=StringIO(), record=True)
    console.print(plan_table(rows))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_long_note_of_several_keys_is_below_the_table() -> None:
    lines = shown(LONG, "short", LONG, "short")
    assert lines[1].endswith("(1)")
    assert lines[3].endswith("(1)")
    assert lines[2].endswith("short")
    assert lines[5:] == [f"(1) {LONG}"]


def test_a_note_of_one_key_stays_in_its_line() -> None:
    lines = shown(LONG, "short")
    assert lines[1].endswith(LONG)
    assert len(lines) == 3
