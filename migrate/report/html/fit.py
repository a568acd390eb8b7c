"""The page of `migrate fit`."""

from __future__ import annotations

import re
from pathlib import Path

from migrate.counts import binary_size
from migrate.fit.verdict import FitReport, FitVerdict
from migrate.report.html.banner import Banner, State, joined, sentence
from migrate.report.html.page import write_page
from migrate.report.html.plots import FIRST, WRONG, plot
from migrate.report.text.fit import saving_lines
from migrate.report.text.quantities import shown_seconds, shown_share

# The limit of the HBM is drawn where the peak reaches this fraction of it: else it would flatten the curve.
_LEAST_FRACTION = 0.3
_LINES = 12  # rows; --json has all


def write_fit_page(report: FitReport, path: Path) -> None:
    """Write the page of a fit to `path`, replacing the file if it exists.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    write_page(
        "fit.html.j2",
        path,
        _banner(report),
        title=f"migrate fit {report.target}",
        report=report,
        curves={
            verdict.product.name: _curve(verdict) for verdict in report.verdicts if verdict.memory
        },
        most=_LINES,
        saving=saving_lines,
        size=binary_size,
        time=shown_seconds,
        share=shown_share,
        state=_state,
    )


def _state(verdict: FitVerdict) -> State:
    """Return the color of a verdict."""
    if verdict.fits:
        return "fine"
    return "open" if verdict.state == "undetermined" else "wrong"


def _banner(report: FitReport) -> Banner:
    what = "a training step" if report.trains else "the program"
    fitting = [verdict for verdict in report.verdicts if verdict.fits]
    failing = [verdict for verdict in report.verdicts if not verdict.fits]
    where = joined([verdict.product.name for verdict in fitting]) if fitting else ""
    if not failing:
        fullest = max(verdict.needed / max(1, verdict.available) for verdict in fitting)
        most = shown_share(fullest).replace("<", "less than ")
        finding = f"{what} compiles for {where} and takes {most} of the HBM."
        next_step = "Run it on a TPU. Nothing was executed on one here, and real steps take longer."
        return Banner("fine", f"Fits on {where}", sentence(finding), next_step)
    first = failing[0]
    names = joined([verdict.product.name for verdict in failing])
    if fitting:
        title = f"Fits on {where}, not on {names}"
    elif all(verdict.state == "undetermined" for verdict in failing):
        title = f"Undetermined on {names}"
    else:
        title = f"Does not fit on {names}"
    finding, next_step = _finding(what, first), _next_step(report, first)
    return Banner(_state(first), title, sentence(finding), sentence(next_step))


def _finding(what: str, verdict: FitVerdict) -> str:
    """Return why the program does not fit on a slice."""
    name = verdict.product.name
    if verdict.state == "too big" and verdict.needed:
        needed, available = map(binary_size, (verdict.needed, verdict.available))
        return f"{what} needs {needed} of HBM on each device of {name}, which has {available}"
    place = f" (`{verdict.where}`)" if verdict.where else ""
    return f"{name}: {verdict.state}: {verdict.why}{place}"


def _next_step(report: FitReport, failing: FitVerdict) -> str:
    """Return what to do about a slice on which the program does not fit."""
    for tried in report.tried:
        for verdict in tried.verdicts:
            if verdict.fits and verdict.product == failing.product:
                return (
                    f"train with {tried.what}: with this change it fits on {verdict.product.name}"
                )
    if changes := re.match(r"--try \S+", failing.remedy):
        return (
            f"add `{changes[0]}`: it compiles with each of these changes and shows which one fits"
        )
    return failing.remedy or "see the reason above, change the program, and compile it again"


def _curve(verdict: FitVerdict) -> str:
    """Plot what is in HBM over the schedule, and how much HBM there is."""
    assert verdict.memory is not None
    memory = verdict.memory
    unit, scale = ("GiB", 2**30) if memory.peak >= 2**29 else ("MiB", 2**20)
    description = (
        f"Memory on {verdict.product.name} over the instructions of the step: at most "
        f"{binary_size(memory.peak)} of {binary_size(verdict.available)}."
    )
    with plot("instruction of the schedule", unit, description) as drawing:
        positions = [position for position, _ in memory.thinned]
        sizes = [size / scale for _, size in memory.thinned]
        drawing.axes.fill_between(
            positions, sizes, step="post", color=FIRST, alpha=0.6, label="in HBM"
        )
        limit = verdict.available / scale
        if max(sizes) > _LEAST_FRACTION * limit:
            drawing.axes.axhline(limit, color=WRONG, linestyle="--", label="HBM of the device")
        drawing.axes.set_ylim(bottom=0)
        drawing.axes.margins(x=0)
    return drawing.svg
