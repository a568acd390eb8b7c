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
    assert ("at a line where another graph" in " ".join(text.split())) is bool(syncs)


@pytest.mark.parametrize(
    ("change", "pads"),
    [
        ("the shape of an input: f32[8,8] → f32[5,8] (net.py:3)", True),
        ("46 more: inputs (adam.py:466)", False),
    ],
)
def test_batches_are_to_be_padded_only_if_a_shape_changed(change: str, pads: bool) -> None:
    report = created.RUNS["steady"]()
    again = (Recompilation(9, report.loops[0].line, (change,), (0,)),)
    text = shown(dataclasses.replace(report, recompilations=again))
    assert "still compiling" in text
    assert ("pad batches" in text) is pads


def test_graphs_beside_the_step_are_explained() -> None:
    report = created.RUNS["steady"]()
    (loop, *_) = report.loops
    more = dataclasses.replace(
        report, loops=(dataclasses.replace(loop, executions=1.35, cuts=1.5),)
    )
    text = " ".join(shown(more).split())
    assert "graphs per sync: the average. 1 is the step" in text
    assert "cut by simulation: further graphs" in text


def test_what_syncs_is_no_step_unless_an_optimizer_stepped() -> None:
    report = created.RUNS["steady"]()
    evaluation = dataclasses.replace(report.loops[0], steps=4, optimizer_steps=0)
    rows = shown(dataclasses.replace(report, loops=(*report.loops, evaluation))).splitlines()
    assert rows[1].split()[:3] == ["sync", "syncs", "steps"]
    counts = [row.split("step():")[1].split()[:2] for row in rows if "step():" in row]
    assert counts == [["12", "12"], ["4", "0"]]
