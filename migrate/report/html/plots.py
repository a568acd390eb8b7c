"""Plots as inline SVG in the colors of the page, so that they follow its light and dark scheme."""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Matplotlib draws in these colors; the page replaces them with its CSS variables (templates/style.html.j2).
FIRST, SECOND = "#0072b1", "#d55e01"
WRONG, FINE, OPEN = "#b00031", "#1c6b51", "#8a5a01"
QUIET, LINE, INK = "#808182", "#c0c1c2", "#000000"
_VARIABLES = {
    FIRST: "var(--a)",
    SECOND: "var(--b)",
    WRONG: "var(--wrong)",
    FINE: "var(--fine)",
    OPEN: "var(--open)",
    QUIET: "var(--muted)",
    LINE: "var(--line)",
    INK: "currentColor",
}
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: readers can search it, and it takes the page's font
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.linewidth": 0.6,
    "font.size": 9.0,
}
# Inches at which the text of a plot has the size of the page's text: on a desktop and on a phone.
_WIDE, _NARROW = 9.0, 4.7
_LEAST_HEIGHT = 2.6  # inches, on a phone
_COLUMNS = {_WIDE: 6, _NARROW: 3}  # of the legend
# A vertical axis whose values agree to this fraction is widened: else its ticks would be an offset.
_LEAST_SPAN = 0.02


class Plot:
    """A plot while it is drawn; `svg` is set when the block of `plot` ends."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.svg = ""


@contextlib.contextmanager
def plot(x: str, y: str, description: str, height: float = 2.6) -> Iterator[Plot]:
    """Yield a plot; when the block ends, its `svg` holds one drawing for wide pages and one for phones.

    Args:
        x, y: labels of the axes.
        description: text that a screen reader reads instead of the plot; it stands once on a page.
        height: inches on a wide page.
    """
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no state, no display

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(_WIDE, height), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(axis="y", color=LINE, linewidth=0.4)
        drawing = Plot(axes)
        yield drawing
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.minorticks_off()
        _widen(axes)
        for axis in (axes.xaxis, axes.yaxis):
            _write_plain_ticks(axis)
        drawing.svg = "".join(
            _draw(figure, axes, description, width, name, max(height, least))
            for name, width, least in (("wide", _WIDE, 0.0), ("narrow", _NARROW, _LEAST_HEIGHT))
        )


def bars(
    names: Sequence[str],
    parts: Sequence[tuple[str, Sequence[float], str]],
    x: str,
    y: str,
    description: str,
) -> str:
    """Return stacked bars, one for each of `names`; a part is its label, its heights, its color."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    with plot(x, y, description) as drawing:
        tops = [0.0] * len(names)
        for label, heights, color in parts:
            drawing.axes.bar(
                range(len(names)), heights, bottom=tops, label=label, color=color, width=0.9
            )
            tops = [top + height for top, height in zip(tops, heights, strict=True)]

        def name_at(position: float, _: object) -> str:
            inside = position == int(position) and 0 <= position < len(names)
            return names[int(position)] if inside else ""

        drawing.axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        drawing.axes.xaxis.set_major_formatter(FuncFormatter(name_at))
        drawing.axes.set_xlim(-0.6, len(names) - 0.4)
        if all(float(height).is_integer() for _, heights, _ in parts for height in heights):
            drawing.axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing.svg


def _widen(axes: Axes) -> None:
    """Widen a vertical axis whose values hardly differ, so that its ticks are plain numbers."""
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    if axes.get_yscale() == "linear" and high - low < _LEAST_SPAN * abs(middle):
        axes.set_ylim(middle - 0.05 * abs(middle), middle + 0.05 * abs(middle))


def _write_plain_ticks(axis: Axis) -> None:
    """Write each tick as a whole number: no offset and no power of ten beside the axis."""
    from matplotlib.ticker import FuncFormatter, ScalarFormatter

    if isinstance(axis.get_major_formatter(), ScalarFormatter):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _draw(
    figure: Figure, axes: Axes, description: str, width: float, name: str, height: float
) -> str:
    import matplotlib

    figure.set_size_inches(width, height)
    if axes.get_legend_handles_labels()[0]:
        # Above the plot: no curve runs behind it.
        axes.legend(
            frameon=False,
            ncols=_COLUMNS[width],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            borderaxespad=0.2,
            columnspacing=1.2,
            fontsize="small",
        )
    text = io.StringIO()
    # Equal plots are equal text, and no two drawings of a page share an id.
    with matplotlib.rc_context({"svg.hashsalt": f"{description} {name}"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    # The text before <svg> belongs to files of their own.
    return _inline(text.getvalue()[text.getvalue().index("<svg") :], description, name)


def _inline(svg: str, description: str, name: str) -> str:
    """Return a drawing as part of a page: its text, its colors and its description."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Names of groups ("text_7") repeat in each plot, and nothing refers to them.
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)
    label = html.escape(description)
    svg = svg.replace("<svg ", f'<svg class="{name}" role="img" aria-label="{label}" ', 1)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg
