"""The heat map and the tables of the page of `migrate parity`, as plain values for its template."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from migrate.parity.ground.results import Errors, LayerResult, Parity
from migrate.report.text.parity import words
from migrate.report.text.parity.nodes import LayerNode, State, runs

# Shades by the error as a multiple of its limit: the first whose bound it does not exceed.
SHADES = (
    ("h0", 1e-2, "1/100 of the limit"),
    ("h1", 1e-1, "1/10"),
    ("h2", 0.3, "3/10"),
    ("h3", 1.0, "the limit"),
    ("w0", 10.0, "10 times"),
    ("w1", 100.0, "100 times"),
    ("w2", 1000.0, "1000 times"),
)
WORST, NOT_FINITE, NOTHING = "w3", "nan", "none"
COLUMNS = ("A local", "B local", "A accumulated", "B accumulated")
_LOCAL = COLUMNS[:2]
_MARKS = {
    State.MATCH: "✓",
    State.PARTS: "✗",
    State.CARRIED: "~",
    State.UNFED: "?",
    State.UNDEFINED: "?",
    State.ALONE: "·",
}


@dataclass(frozen=True)
class TableCell:
    """Error with its text, and the shade that shows it as a multiple of its limit.

    `own` is set where the error is why the layer diverges.
    """

    text: str
    shade: str
    own: bool = False


@dataclass(frozen=True)
class HeatRow:
    """A row of the heat map.

    Attributes:
        mark, state: what is worst in it and below.
        label, kind: of the module, or of neighbors that are folded into one row.
        count: layers in it, in words; "" where it is a single one.
        anchor: index of the layer in the table; None for a row without a layer of its own.
        cells: of `COLUMNS`.
        open: whether its children are shown at once.
        first: whether it is the first layer that parts.
        children: rows below it.
    """

    mark: str
    state: str
    label: str
    kind: str
    count: str
    anchor: int | None
    cells: tuple[TableCell, ...]
    open: bool
    first: bool
    children: tuple[HeatRow, ...]


def cell(error: Errors | None, limit: float, *, own: bool = False) -> TableCell:
    """Create the cell of an error with a limit."""
    if error is None:
        return TableCell("–", NOTHING)
    return TableCell(words.error(error), _shade(words.pressure(error, limit)), own)


def _shade(pressure: float | None) -> str:
    if pressure is None:
        return NOTHING
    if not math.isfinite(pressure):
        return NOT_FINITE
    return next((shade for shade, bound, _ in SHADES if pressure <= bound), WORST)


class HeatMap:
    """Makes the rows of the heat map of a comparison."""

    def __init__(self, parity: Parity) -> None:
        self._parity = parity
        self._index = {id(layer): index for index, layer in enumerate(parity.layers)}

    def rows(self, root: LayerNode) -> tuple[HeatRow, ...]:
        """The root's row, with all others below it."""
        return (self._row(root, top=True),)

    def _row(self, node: LayerNode, *, top: bool = False) -> HeatRow:
        layer = node.layer
        kind = "" if layer is None else layer.kind
        return HeatRow(
            mark=_MARKS[node.state],
            state=node.state.value.replace(" ", "-"),
            label=node.label or kind or "the model",
            kind=kind if node.label else "",
            count=words.many(len(node.layers), "layer") if node.children else "",
            anchor=None if layer is None else self._index[id(layer)],
            cells=_cells(layer),
            open=top or node.state is State.PARTS,
            first=layer is not None and words.is_first(self._parity, layer),
            children=self._below(node, top),
        )

    def _below(self, node: LayerNode, top: bool) -> tuple[HeatRow, ...]:
        rows = []
        for run in runs(node.children, alike=top):
            rows.append(self._row(run[0]) if len(run) == 1 else self._folded(run))
        return tuple(rows)

    def _folded(self, run: Sequence[LayerNode]) -> HeatRow:
        kinds = {node.layer.kind for node in run if node.layer is not None}
        layers = sum(len(node.layers) for node in run)
        return HeatRow(
            mark=_MARKS[run[0].state],
            state=run[0].state.value.replace(" ", "-"),
            label=f"{run[0].label} … {run[-1].label}",
            kind=f"{len(run)} × {kinds.pop()}" if len(kinds) == 1 else f"{len(run)} modules",
            count="" if layers == len(run) else words.many(layers, "layer"),
            anchor=None,
            cells=_worst_cells([layer for node in run for layer in node.layers]),
            open=False,
            first=False,
            children=tuple(self._row(node) for node in run),
        )


def _cells(layer: LayerResult | None) -> tuple[TableCell, ...]:
    if layer is None:
        return (TableCell("", NOTHING),) * len(COLUMNS)
    own = words.parting_sides(layer)
    return tuple(
        cell(error, limit, own=column in _LOCAL and column[0] in own)
        for column, (error, limit) in zip(COLUMNS, _errors(layer), strict=True)
    )


def _worst_cells(layers: Sequence[LayerResult]) -> tuple[TableCell, ...]:
    """The worst of each column: for neighbors that are folded into one row."""
    cells = []
    for column in zip(*map(_errors, layers), strict=True):
        cells.append(cell(*max(column, key=lambda output: words.pressure(*output) or -1.0)))
    return tuple(cells)


def _errors(layer: LayerResult) -> tuple[tuple[Errors | None, float], ...]:
    a, b = layer.a, layer.b
    return (
        (a.local if a else None, layer.local_limit),
        (b.local if b else None, layer.local_limit),
        (a.accumulated if a else None, layer.accumulated_limit),
        (b.accumulated if b else None, layer.accumulated_limit),
    )


@dataclass(frozen=True)
class LayerRow:
    """A row of the table of all layers.

    Attributes:
        layer: the layer.
        state: for its color.
        first: whether it is the first that parts.
        cells: of `COLUMNS`.
        ratios, most, ulps: of A and B, as texts.
        layouts: how the sides' tensors lie, where that is not as the truth's.
        names: of the sides where they differ from the truth's, and how they were aligned.
        places: where the sides' layers are defined and called.
    """

    layer: LayerResult
    state: str
    first: bool
    cells: tuple[TableCell, ...]
    ratios: tuple[str, str]
    most: tuple[str, str]
    ulps: tuple[str, str]
    layouts: tuple[str, ...]
    names: tuple[str, ...]
    places: tuple[str, ...]


def layer_rows(parity: Parity) -> list[LayerRow]:
    """All layers in order of execution."""
    return [layer_row(parity, layer) for layer in parity.layers]


def layer_row(parity: Parity, layer: LayerResult) -> LayerRow:
    """The row of one layer."""
    parts = layer.verdict in words.PARTING
    mains = [side and (side.local or side.accumulated) for side in (layer.a, layer.b)]
    return LayerRow(
        layer=layer,
        state="parts" if parts else layer.verdict.value.replace(" ", "-"),
        first=words.is_first(parity, layer),
        cells=_cells(layer),
        ratios=_pair(words.ratio(side.ratio) if side else "–" for side in (layer.a, layer.b)),
        most=_pair(words.size(main.max_over_rms if main else None) for main in mains),
        ulps=_pair(words.figure(main.ulps if main else None) for main in mains),
        layouts=tuple(
            f"{letter} {text}" for letter, side in words.two(layer) for text in words.layouts(side)
        ),
        names=tuple(
            f"{letter} {words.side_name(layer, side)}"
            for letter, side in words.two(layer)
            if words.side_name(layer, side) != words.layer_name(layer.name)
        ),
        places=tuple(
            f"{letter} {check}"
            for letter, side in words.two(layer)
            if (check := words.where(parity.layers, layer, letter, side))
        ),
    )


def _pair(texts: Iterable[str]) -> tuple[str, str]:
    a, b = texts
    return a, b
