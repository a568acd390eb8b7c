"""The page of `migrate run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from migrate.observe.places import Cause
from migrate.observe.records import Interval
from migrate.observe.report import Observed
from migrate.report.html.page import write_page
from migrate.report.html.plots import BLUE, GREEN, GREY, RED, YELLOW, bars

# Of a longer run the first steps, which compile, and the last: bars thinner than a pixel show nothing.
_FIRST, _LAST = 60, 60
_COLOURS = {
    Cause.SYNC: BLUE,
    Cause.READ: RED,
    Cause.COMPILED: YELLOW,
    Cause.RENDEZVOUS: GREEN,
    Cause.WRAPPING: GREEN,
    Cause.SIMULATION: GREY,
}


def write_run_page(report: Observed, script: Path, path: Path) -> None:
    """Write the page of the run of `script` to `path`; what is there is replaced.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    shown = _shown([step for step in report.steps if step.rank == report.steps[0].rank])
    write_page(
        "run.html.j2",
        path,
        title=f"migrate run {script}",
        report=report,
        shown=shown,
        times=_times(shown) if shown else "",
        graphs=_graphs(shown) if shown else "",
    )


def _shown(steps: Sequence[Interval]) -> list[Interval]:
    steps = [step for step in steps if step.line is not None]
    return list(steps if len(steps) <= _FIRST + _LAST else [*steps[:_FIRST], *steps[-_LAST:]])


def _times(steps: Sequence[Interval]) -> str:
    """Plot the wall time of each step, in seconds, compilation apart."""
    compiling = [step.compile_seconds for step in steps]
    rest = [max(0.0, step.seconds - step.compile_seconds) for step in steps]
    parts = (("compiling", compiling, RED), ("all else", rest, BLUE))
    return bars([str(step.number) for step in steps], parts, "sync", "seconds")


def _graphs(steps: Sequence[Interval]) -> str:
    """Plot the number of graphs that each step executed, by what asked for them."""
    parts = []
    for cause, colour in _COLOURS.items():
        counts = [float(sum(one.cause is cause for one in step.executions)) for step in steps]
        if any(counts):
            parts.append((str(cause), counts, colour))
    return bars([str(step.number) for step in steps], parts, "sync", "graphs")
