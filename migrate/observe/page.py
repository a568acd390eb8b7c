"""The report of a run as one HTML file: no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from converters.atomic import atomic_write
from migrate.errors import MigrateError
from migrate.observe.places import Cause
from migrate.observe.records import Interval
from migrate.observe.report import Observed
from migrate.versions import versions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Of a longer run the first steps, which compile, and the last: bars thinner than a pixel show nothing.
_FIRST, _LAST = 60, 60


class PageError(MigrateError):
    """The page cannot be written.

    Cause: its folder does not exist, or the packages that draw it are not installed.

    Remedy: make the folder, or `pip install 'tpu-migrate[report]'`.
    """


def check_page_target(path: Path) -> None:
    """Raise what `write_page` would, as far as it can be known before the run.

    Raises:
        PageError: see there.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise PageError(f"{path}: is no file in a folder that exists", "name a file with --html")
    for package in ("jinja2", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise PageError(f"{package} is not installed", "pip install 'tpu-migrate[report]'")


def write_page(report: Observed, script: Path, path: Path) -> None:
    """Write the page of the run of `script` to `path`; what is there is replaced.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    check_page_target(path)
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("migrate.observe", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = _shown([step for step in report.steps if step.rank == report.steps[0].rank])
    page = environment.get_template("page.html.j2").render(
        report=report,
        script=str(script),
        versions=versions(),
        shown=shown,
        times=_times(shown) if shown else "",
        graphs=_graphs(shown) if shown else "",
    )
    with atomic_write(path, overwrite=True) as file:
        file.write(page.encode())


def _shown(steps: Sequence[Interval]) -> list[Interval]:
    steps = [step for step in steps if step.line is not None]
    return list(steps if len(steps) <= _FIRST + _LAST else [*steps[:_FIRST], *steps[-_LAST:]])


def _times(steps: Sequence[Interval]) -> str:
    """Plot the wall time of each step, in seconds, compilation apart."""
    compiling = [step.compile_seconds for step in steps]
    rest = [max(0.0, step.seconds - step.compile_seconds) for step in steps]
    parts = (("compiling", compiling, "#d1495b"), ("all else", rest, "#30638e"))
    return _bars(steps, parts, "seconds")


def _graphs(steps: Sequence[Interval]) -> str:
    """Plot the number of graphs that each step executed, by what asked for them."""
    colours = ("#30638e", "#d1495b", "#edae49", "#b0b7bd")
    parts = [
        (
            str(cause),
            [float(sum(one.cause is cause for one in step.executions)) for step in steps],
            c,
        )
        for cause, c in zip(Cause, colours, strict=True)
    ]
    return _bars(steps, [part for part in parts if any(part[1])], "graphs")


def _bars(
    steps: Sequence[Interval], parts: Sequence[tuple[str, Sequence[float], str]], unit: str
) -> str:
    """Return stacked bars, one a step, as SVG."""
    from matplotlib.figure import Figure  # not pyplot: no state, no display

    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes: Axes = figure.add_subplot()
    below = [0.0] * len(steps)
    places = range(len(steps))
    for label, heights, colour in parts:
        axes.bar(places, heights, bottom=below, label=label, color=colour, width=0.9)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    ticks = list(places)[:: max(1, len(steps) // 20)]
    axes.set_xticks(ticks, [str(steps[place].number) for place in ticks])
    axes.set_xlabel("sync")
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=4, loc="upper right", fontsize="small")
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    # What stands before <svg> is for files of their own.
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]
