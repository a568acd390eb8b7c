"""Plots as SVG text for a page."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED, YELLOW, GREEN = "#30638e", "#d1495b", "#edae49", "#66a182"
GREY = "#b0b7bd"
# Wide enough for a number of four digits beside the next.
_TICKS = 20


class Plot:
    """A plot that is being drawn; `svg` is set when it is done."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.svg = ""


@contextlib.contextmanager
def plot(x: str, y: str, height: float = 2.6) -> Iterator[Plot]:
    """Yield a plot with these labels of its axes; its SVG is there when the block ends.

    Args:
        x, y: the labels.
        height: in inches, of a width of 9.
    """
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no state, no display

    # Equal plots are equal texts: the ids in them are not drawn by chance.
    with matplotlib.rc_context({"svg.hashsalt": "migrate"}):
        figure = Figure(figsize=(9, height), layout="constrained")
        drawn = Plot(figure.add_subplot())
        yield drawn
        drawn.axes.set_xlabel(x)
        drawn.axes.set_ylabel(y)
        drawn.axes.spines[["top", "right"]].set_visible(False)
        # Above the plot: no curve runs behind it.
        drawn.axes.legend(
            frameon=False, ncols=6, loc="lower right", bbox_to_anchor=(1, 1), fontsize="small"
        )
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    # What stands before <svg> is for files of their own.
    drawn.svg = text.getvalue()[text.getvalue().index("<svg") :]


def bars(
    names: Sequence[str], parts: Sequence[tuple[str, Sequence[float], str]], x: str, y: str
) -> str:
    """Return stacked bars, one for each of `names`; a part is its label, its heights, its colour."""
    with plot(x, y) as drawn:
        below = [0.0] * len(names)
        places = range(len(names))
        for label, heights, colour in parts:
            drawn.axes.bar(places, heights, bottom=below, label=label, color=colour, width=0.9)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        ticks = list(places)[:: max(1, len(names) // _TICKS)]
        drawn.axes.set_xticks(ticks, [names[place] for place in ticks])
    return drawn.svg
