"""The plots of the page of `migrate parity`, in the page's own colours: light and dark alike."""

from __future__ import annotations

import contextlib
import html
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from migrate.parity.ground.results import LayerResult, LayerVerdict, Parity, Section
from migrate.report.html.plots import Plot, plot
from migrate.report.text.parity import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What matplotlib draws in these colours the page shows in those of its variables.
A, B, QUIET, WRONG, LINE = "#0072b1", "#d55e01", "#808182", "#b00031", "#c0c1c2"
_INK = "#000000"
_VARIABLES = {
    A: "var(--a)",
    B: "var(--b)",
    QUIET: "var(--muted)",
    WRONG: "var(--wrong)",
    LINE: "var(--line)",
    _INK: "currentColor",
}
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: it can be found, and takes the page's font
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.linewidth": 0.6,
    "font.size": 9.0,
}
_MARKED = 6  # parting layers with their names in the plot: more names would hide each other
_LONGEST = 44  # characters of a name in a plot


@contextlib.contextmanager
def _drawing(x: str, y: str, said: str, height: float = 2.6) -> Iterator[Plot]:
    """Yield a plot; `said` is what a reader hears who does not see it."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS), plot(x, y, height) as drawn:
        yield drawn
        drawn.axes.grid(axis="y", color=LINE, linewidth=0.4)
        drawn.axes.set_axisbelow(True)
    text = re.sub(r"<metadata>.*?</metadata>", "", drawn.svg, flags=re.DOTALL)
    # Names of parts ("text_7") that come again in each plot; nothing refers to them.
    text = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", text)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(said)}" ', 1)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    drawn.svg = text


def depth_plot(parity: Parity, *, local: bool) -> str:
    """Return errors against depth: the local ones as points, the accumulated ones as lines.

    "" where there is nothing to draw.
    """
    layers = _in_depth(parity.layers, local)
    if not any(_values(layers, letter, local) for letter in "AB"):
        return ""
    what = "local" if local else "accumulated"
    y = f"{what} relative L2"
    with _drawing("leaf layers before it", y, f"{what} error against depth", 3.0) as drawn:
        axes = drawn.axes
        axes.set_yscale("log")
        # B lies on A where they agree: A is drawn wider, so that both are seen.
        for letter, colour, marker, width in (("A", A, "o", 2.6), ("B", B, "D", 1.1)):
            points = _values(layers, letter, local)
            finite = [(x, y) for x, y in points if math.isfinite(y) and y > 0]
            axes.plot(
                [x for x, _ in finite],
                [y for _, y in finite],
                marker if local or len(finite) == 1 else "-",
                color=colour,
                label=letter,
                markersize=2.6 if letter == "A" else 2.2,
                linewidth=width,
            )
            _not_finite(axes, [x for x, y in points if not math.isfinite(y)], colour, letter)
        _limits(axes, parity, layers, local)
        _mark(axes, parity, local)
        axes.margins(x=0.01)
        axes.locator_params(axis="x", integer=True)
    return drawn.svg


def _in_depth(layers: Sequence[LayerResult], local: bool) -> list[LayerResult]:
    """The layers to draw: of the accumulated errors the leaves', which no other contains."""
    if local:
        return list(layers)
    parents = {
        layer.name[:at] for layer in layers for at, letter in enumerate(layer.name) if letter == "."
    } | {""}
    leaves = [layer for layer in layers if layer.name not in parents]
    return leaves or list(layers)


def _values(layers: Sequence[LayerResult], letter: str, local: bool) -> list[tuple[int, float]]:
    found = []
    for layer in layers:
        side = layer.a if letter == "A" else layer.b
        error = None if side is None else side.local if local else side.accumulated
        if error is not None:
            found.append((layer.depth, math.nan if error.not_finite else error.relative_l2))
    return found


def _not_finite(axes: Axes, places: Sequence[int], colour: str, letter: str) -> None:
    if places:
        axes.plot(
            places,
            [1.0] * len(places),
            "x",
            color=colour,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            label=f"{letter}: NaN",
        )


def _limits(axes: Axes, parity: Parity, layers: Sequence[LayerResult], local: bool) -> None:
    limits = sorted(
        (layer.depth, layer.local_limit if local else layer.accumulated_limit)
        for layer in layers
        if layer.verdict is not LayerVerdict.ALONE
    )
    finite = [(x, y) for x, y in limits if math.isfinite(y) and y > 0]
    axes.plot(
        [x for x, _ in finite],
        [y for _, y in finite],
        "--",
        color=WRONG,
        linewidth=1,
        label="limit",
    )
    emulated = [(layer.depth, layer.emulated[1 if local else 0]) for layer in layers]
    drawn = [(x, y) for x, y in emulated if y is not None and math.isfinite(y) and y > 0]
    if drawn:
        axes.plot(
            [x for x, _ in drawn],
            [y for _, y in drawn],
            "." if local else "-",
            color=QUIET,
            linewidth=0.8,
            markersize=2,
            label="emulation",
            zorder=1,
        )
    if not local and math.isfinite(parity.floor) and parity.floor > 0:
        axes.axhline(
            parity.floor,
            color=QUIET,
            linestyle=":",
            linewidth=1,
            label="noise floor at the outputs",
        )


def _mark(axes: Axes, parity: Parity, local: bool) -> None:
    """Mark the layers that part, and name the first ones."""
    parting = [layer for layer in parity.layers if layer.verdict in words.PARTING]
    last = max((layer.depth for layer in parity.layers), default=0)
    named = 0
    for layer in parting:
        errors = [side.local if local else side.accumulated for _, side in words.two(layer)]
        numbers = [
            math.nan if error.not_finite else error.relative_l2
            for error in errors
            if error is not None
        ]
        # What is NaN lies at the upper edge, and so does the name.
        values = numbers if all(map(math.isfinite, numbers)) else []
        is_first = words.is_first(parity, layer)
        if is_first:
            axes.axvline(layer.depth, color=WRONG, linewidth=0.8, alpha=0.6)
        high = max(values, default=0.0)
        if local and high > 0:
            axes.plot([layer.depth], [high], "o", markersize=9, mfc="none", mec=WRONG, mew=1.3)
        if is_first or (local and named < _MARKED and high > 0 and parity.first is None):
            named += 1
            left = layer.depth > last / 2
            axes.annotate(
                _text(words.layer_name(layer.name)),
                (layer.depth, high or 0.9),
                xycoords="data" if high > 0 else axes.get_xaxis_transform(),
                xytext=(-8 if left else 8, 4),
                textcoords="offset points",
                ha="right" if left else "left",
                va="bottom",
                color=WRONG,
                fontweight="bold",
            )
    if named:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * 5)  # room for a name above the highest point


def _text(name: str) -> str:
    """A name as matplotlib is to write it: a dollar would begin a formula."""
    cut = name
    while len(cut) > _LONGEST and "." in cut:
        cut = cut.partition(".")[2]
    cut = cut[-_LONGEST:]
    return ("" if cut == name else "… ") + cut.replace("$", r"\$")


def histogram(edges: Sequence[float], a: Sequence[int], b: Sequence[int]) -> str:
    """Return how often an element is how far from the truth, of both sides; "" if none is."""
    if not (any(a) or any(b)) or len(edges) < 2:
        return ""
    x = "|error| / rms of the truth"
    with _drawing(x, "elements", f"histogram of {x}", 2.2) as drawn:
        for counts, colour, letter in ((a, A, "A"), (b, B, "B")):
            drawn.axes.stairs(counts, edges, fill=True, color=colour, alpha=0.25)
            drawn.axes.stairs(counts, edges, color=colour, label=letter, linewidth=1.3)
        powers = range(math.ceil(edges[0]), math.floor(edges[-1]) + 1)
        shown = powers[:: max(1, len(powers) // 10)]
        drawn.axes.set_xticks(list(shown), [f"1e{power}" for power in shown])
        filled = [at for at in range(min(len(a), len(b))) if a[at] or b[at]]
        drawn.axes.set_xlim(
            edges[max(0, filled[0] - 1)], edges[min(len(edges) - 1, filled[-1] + 2)]
        )
    return drawn.svg


def curves(section: Section) -> str:
    """Return the curves of a section; between those with "low" and "high" in their names lies a band."""
    found = [(name, values) for name, values in section.curves if values]
    if not found:
        return ""
    low, high = (next((one for one in found if word in one[0]), None) for word in ("low", "high"))
    training = section.name == "training"
    x, y = ("step", "loss") if training else ("", "")
    with _drawing(x, y, f"curves of {section.name}") as drawn:
        if low and high:
            length = min(len(low[1]), len(high[1]))
            drawn.axes.fill_between(
                range(length),
                low[1][:length],
                high[1][:length],
                color=QUIET,
                alpha=0.25,
                linewidth=0,
                label=low[0].replace("low", "").strip(" ,:") or "band",
            )
            found = [one for one in found if one not in (low, high)]
        others = itertools.cycle((QUIET, _INK))
        for name, values in found:
            a, b = name.startswith("A"), name.startswith("B")
            apart = "each step" in name  # the single losses, beside their mean
            drawn.axes.plot(
                range(len(values)),
                values,
                "--" if b else "-",
                color=A if a else B if b else next(others),
                linewidth=0.7 if apart else 2.4 if a else 1.2,
                alpha=0.45 if apart else 1.0,
                label=_text(name),
            )
        drawn.axes.margins(x=0.01)
        drawn.axes.locator_params(axis="x", integer=True)
    return drawn.svg
