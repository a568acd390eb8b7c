"""The terminal view of `migrate run`: what a reader learns of compilations and of syncs."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from migrate.observe.report import Observed, Recompilation
from migrate.report.text.run import run_summary
from tests.report import created


def shown(report: Observed) -> str:
    console = Console(file=io.StringIO(), width=120)
    for part in run_summary(report):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("syncs", "verdict"),
    [
        ((), ""),
        ((2,), "compiling has ended: 1 graph compiled again, the last at sync 2 of 12"),
        ((2, 3, 5), "compiling has ended: 3 graphs compiled again, the last at sync 5 of 12"),
        ((2, 7), "still compiling: 2 graphs compiled again, the last at sync 7 of 12"),
    ],
)
def test_whether_compiling_came_to_an_end_is_said(syncs: tuple[int, ...], verdict: str) -> None:
    line = created.RUNS["steady"]().loops[0].line
    again = tuple(Recompilation(sync, line, ("a shape",), (0,)) for sync in syncs)
    text = shown(dataclasses.replace(created.RUNS["steady"](), recompilations=again))
    said = [row for row in text.splitlines() if "compiling" in row]
    assert [verdict in row for row in said] == ([True] if verdict else [])


def test_what_syncs_is_no_step_unless_an_optimizer_stepped() -> None:
    report = created.RUNS["steady"]()
    evaluation = dataclasses.replace(report.loops[0], steps=4, optimizer_steps=0)
    rows = shown(dataclasses.replace(report, loops=(*report.loops, evaluation))).splitlines()
    assert rows[1].split()[:3] == ["sync", "syncs", "steps"]
    counts = [row.split("step():")[1].split()[:2] for row in rows if "step():" in row]
    assert counts == [["12", "12"], ["4", "0"]]
