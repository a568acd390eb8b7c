"""The page of `migrate fit`."""

from __future__ import annotations

from pathlib import Path

from migrate.fit.verdict import FitReport, Verdict
from migrate.report.html.page import write_page
from migrate.report.html.plots import BLUE, RED, plot
from migrate.report.text.fit import saving_lines
from migrate.report.text.quantities import shown_bytes, shown_seconds


def write_fit_page(report: FitReport, path: Path) -> None:
    """Write the page of a fit to `path`; what is there is replaced.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    write_page(
        "fit.html.j2",
        path,
        title=f"migrate fit {report.target}",
        report=report,
        curves={one.product.name: _curve(one) for one in report.verdicts if one.memory},
        saving=saving_lines,
        size=shown_bytes,
        time=shown_seconds,
    )


def _curve(one: Verdict) -> str:
    """Plot what is in HBM over the schedule, and what the chip has."""
    assert one.memory is not None
    curve = one.memory.thinned
    unit, scale = ("GiB", 2**30) if one.memory.peak >= 2**29 else ("MiB", 2**20)
    with plot("instruction of the schedule", unit) as drawn:
        places = [place for place, _ in curve]
        sizes = [size / scale for _, size in curve]
        drawn.axes.fill_between(places, sizes, step="post", color=BLUE, alpha=0.6, label="in HBM")
        if max(sizes) > 0.3 * one.available / scale:  # else the line would flatten the curve
            drawn.axes.axhline(one.available / scale, color=RED, label="there is")
        drawn.axes.set_ylim(bottom=0)
        drawn.axes.margins(x=0)
    return drawn.svg
