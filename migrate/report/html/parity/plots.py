"""The plots of the page of `migrate parity`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from migrate.parity.ground.results import LayerResult, LayerVerdict, Parity, Section
from migrate.report.html.plots import FIRST, INK, QUIET, SECOND, WRONG, plot
from migrate.report.text.parity import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKED = 6  # diverging layers whose names a plot shows: more names would hide each other
_LONGEST = 30  # characters of a name in a plot


def depth_plot(parity: Parity, *, local: bool) -> str:
    """Return a plot of errors against depth: local errors as points, accumulated errors as lines.

    "" where there is nothing to draw.
    """
    layers = _drawn_layers(parity.layers, local)
    errors = {letter: _values(layers, letter, local) for letter in "AB"}
    if not any(errors.values()):
        return ""
    what = "local" if local else "accumulated"
    diverging = sum(layer.verdict in words.PARTING for layer in parity.layers)
    description = f"{what.capitalize()} error of {len(layers)} layers against their depth" + (
        f"; {words.many(diverging, 'layer diverges', 'layers diverge')}." if diverging else "."
    )
    with plot("leaf layers before it", f"{what} relative L2", description, 3.0) as drawing:
        axes = drawing.axes
        axes.set_yscale("log")
        # B lies on A where they agree: A is drawn wider, so that both are visible.
        for letter, color, marker, width in (("A", FIRST, "o", 2.6), ("B", SECOND, "D", 1.1)):
            points = errors[letter]
            finite = [(x, y) for x, y in points if math.isfinite(y) and y > 0]
            axes.plot(
                [x for x, _ in finite],
                [y for _, y in finite],
                marker if local or len(finite) == 1 else "-",
                color=color,
                label=letter,
                markersize=2.6 if letter == "A" else 2.2,
                linewidth=width,
            )
            _draw_not_finite(axes, [x for x, y in points if not math.isfinite(y)], color, letter)
        _draw_limits(axes, parity, layers, local)
        _mark_diverging(axes, parity, local)
        axes.margins(x=0.01)
        axes.locator_params(axis="x", integer=True)
    return drawing.svg


def _drawn_layers(layers: Sequence[LayerResult], local: bool) -> list[LayerResult]:
    """Return the layers to draw: for accumulated errors, only layers that contain no other layer."""
    if local:
        return list(layers)
    parents = {
        layer.name[:index]
        for layer in layers
        for index, letter in enumerate(layer.name)
        if letter == "."
    } | {""}
    leaves = [layer for layer in layers if layer.name not in parents]
    return leaves or list(layers)


def _values(layers: Sequence[LayerResult], letter: str, local: bool) -> list[tuple[int, float]]:
    """Return depth and error of each layer of a side; NaN for an error that is not finite."""
    values = []
    for layer in layers:
        side = layer.a if letter == "A" else layer.b
        error = None if side is None else side.local if local else side.accumulated
        if error is not None:
            values.append((layer.depth, math.nan if error.not_finite else error.relative_l2))
    return values


def _draw_not_finite(axes: Axes, depths: Sequence[int], color: str, letter: str) -> None:
    if depths:
        axes.plot(
            depths,
            [1.0] * len(depths),
            "x",
            color=color,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            label=f"{letter}: NaN",
        )


def _draw_limits(axes: Axes, parity: Parity, layers: Sequence[LayerResult], local: bool) -> None:
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
    positive = [(x, y) for x, y in emulated if y is not None and math.isfinite(y) and y > 0]
    if positive:
        axes.plot(
            [x for x, _ in positive],
            [y for _, y in positive],
            "." if local else "-",
            color=QUIET,
            linewidth=0.8,
            markersize=2,
            label="emulation",
            zorder=1,
        )
    if not local and math.isfinite(parity.floor) and parity.floor > 0:
        axes.axhline(
            parity.floor, color=QUIET, linestyle=":", linewidth=1, label="noise of the outputs"
        )


def _mark_diverging(axes: Axes, parity: Parity, local: bool) -> None:
    """Ring the layers that diverge, and write the names of the first ones."""
    diverging = [layer for layer in parity.layers if layer.verdict in words.PARTING]
    last = max((layer.depth for layer in parity.layers), default=0)
    named = 0
    for layer in diverging:
        errors = [side.local if local else side.accumulated for _, side in words.two(layer)]
        values = [
            math.nan if error.not_finite else error.relative_l2
            for error in errors
            if error is not None
        ]
        # A NaN lies at the upper edge, and so does its name.
        high = max(values, default=0.0) if all(map(math.isfinite, values)) else 0.0
        is_first = words.is_first(parity, layer)
        if is_first:
            axes.axvline(layer.depth, color=WRONG, linewidth=0.8, alpha=0.6)
        if local and high > 0:
            axes.plot([layer.depth], [high], "o", markersize=9, mfc="none", mec=WRONG, mew=1.3)
        if is_first or (local and named < _MARKED and high > 0 and parity.first is None):
            named += 1
            is_right = layer.depth > last / 2
            axes.annotate(
                _plain_text(words.layer_name(layer.name)),
                (layer.depth, high or 0.9),
                xycoords="data" if high > 0 else axes.get_xaxis_transform(),
                xytext=(-8 if is_right else 8, 4),
                textcoords="offset points",
                ha="right" if is_right else "left",
                va="bottom",
                color=WRONG,
                fontweight="bold",
            )
    if named:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * 5)  # space for a name above the highest point


def _plain_text(name: str) -> str:
    """Return the end of a long name, with dollar signs that do not begin a formula."""
    end = name
    while len(end) > _LONGEST and "." in end:
        end = end.partition(".")[2]
    end = end[-_LONGEST:]
    return ("" if end == name else "… ") + end.replace("$", r"\$")


def histogram(name: str, edges: Sequence[float], a: Sequence[int], b: Sequence[int]) -> str:
    """Return a histogram of the errors of a layer's elements, of both sides; "" if it is empty."""
    if not (any(a) or any(b)) or len(edges) < 2:
        return ""
    x = "|error| / rms of the reference"
    with plot(x, "elements", f"Histogram of {x} in {name}.", 2.4) as drawing:
        axes = drawing.axes
        for counts, color, letter in ((a, FIRST, "A"), (b, SECOND, "B")):
            axes.stairs(counts, edges, fill=True, color=color, alpha=0.25)
            axes.stairs(counts, edges, color=color, label=letter, linewidth=1.3)
        powers = range(math.ceil(edges[0]), math.floor(edges[-1]) + 1)
        ticks = powers[:: max(1, len(powers) // 10)]
        axes.set_xticks(list(ticks), [f"1e{power}" for power in ticks])
        filled = [index for index in range(min(len(a), len(b))) if a[index] or b[index]]
        axes.set_xlim(edges[max(0, filled[0] - 1)], edges[min(len(edges) - 1, filled[-1] + 2)])
    return drawing.svg


def curves(section: Section) -> str:
    """Return the curves of a section; a band lies between the two with "low" and "high" in their names."""
    lines = [(name, values) for name, values in section.curves if values]
    if not lines:
        return ""
    low, high = (
        next((line for line in lines if word in line[0]), None) for word in ("low", "high")
    )
    x, y = ("step", "loss") if section.name == "training" else ("", "")
    names = ", ".join(name for name, _ in lines)
    with plot(x, y, f"Curves of {section.name}: {names}.") as drawing:
        axes = drawing.axes
        if low and high:
            length = min(len(low[1]), len(high[1]))
            axes.fill_between(
                range(length),
                low[1][:length],
                high[1][:length],
                color=QUIET,
                alpha=0.25,
                linewidth=0,
                label=low[0].replace("low", "").strip(" ,:") or "band",
            )
            lines = [line for line in lines if line not in (low, high)]
        other_colors = itertools.cycle((QUIET, INK))
        for name, values in lines:
            is_a, is_b = name.startswith("A"), name.startswith("B")
            is_detail = "each step" in name  # the single losses, beside their mean
            axes.plot(
                range(len(values)),
                values,
                "--" if is_b else "-",
                color=FIRST if is_a else SECOND if is_b else next(other_colors),
                linewidth=0.7 if is_detail else 2.4 if is_a else 1.2,
                alpha=0.45 if is_detail else 1.0,
                label=_plain_text(name),
            )
        axes.margins(x=0.01)
        axes.locator_params(axis="x", integer=True)
    return drawing.svg
