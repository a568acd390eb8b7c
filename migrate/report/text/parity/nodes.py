"""The layers of a comparison as the tree of modules that they are, with what is well folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import groupby

from migrate.parity.ground.results import Errors, LayerResult, LayerVerdict
from migrate.report.text.parity.words import PARTING, pressures


class State(StrEnum):
    """Worst state in a subtree; earlier members are worse."""

    PARTS = "parts"
    CARRIED = "carried"
    UNFED = "not fed"
    UNDEFINED = "undefined"
    MATCH = "match"
    # Nothing else is in it: one such layer among others is no finding of theirs.
    ALONE = "no partner"


_STATES = {
    LayerVerdict.CARRIED: State.CARRIED,
    LayerVerdict.UNFED: State.UNFED,
    LayerVerdict.UNDEFINED: State.UNDEFINED,
    LayerVerdict.ALONE: State.ALONE,
    LayerVerdict.MATCH: State.MATCH,
} | dict.fromkeys(PARTING, State.PARTS)
_ORDER = list(State)


@dataclass(frozen=True)
class LayerNode:
    """A layer, and those that are called in it.

    Attributes:
        label: its name below its parent ("layer.0": a list in between is no layer).
        layer: None for the root of a comparison that has none.
        children: in order of execution.
    """

    label: str
    layer: LayerResult | None
    children: tuple[LayerNode, ...] = field(default=())

    @cached_property
    def layers(self) -> tuple[LayerResult, ...]:
        """The layers of the subtree, its own first."""
        own = () if self.layer is None else (self.layer,)
        return (*own, *(layer for child in self.children for layer in child.layers))

    @cached_property
    def state(self) -> State:
        """Worst state in the subtree."""
        states = {_STATES[layer.verdict] for layer in self.layers}
        return min(states, key=_ORDER.index, default=State.MATCH)

    @cached_property
    def worst(self) -> tuple[float, Errors] | None:
        """The error in the subtree that is nearest to its limit or farthest above it, and by how much."""
        values = [entry for layer in self.layers for entry in pressures(layer)]
        return max(values, key=lambda entry: entry[0], default=None)

    @property
    def parts(self) -> bool:
        """Whether the layer itself parts, not only one below it."""
        return self.layer is not None and self.layer.verdict in PARTING


def module_tree(layers: Sequence[LayerResult]) -> LayerNode:
    """Return the tree of these layers by their names; its root is the model itself."""
    by_name: dict[str, LayerResult] = {}
    below: dict[str, list[LayerResult]] = {}
    names = {layer.name for layer in layers}
    again: list[LayerResult] = []
    for layer in layers:
        if layer.name in by_name:
            again.append(layer)  # a name that both sides have, each on its own
        else:
            by_name[layer.name] = layer
    for layer in layers:
        if layer.name:
            below.setdefault(_parent(layer.name, names), []).append(layer)
    return _node("", "", by_name, below, {id(layer) for layer in again})


def _parent(name: str, names: set[str]) -> str:
    while name:
        name = name.rpartition(".")[0]
        if name in names:
            return name
    return ""


def _node(
    name: str,
    parent: str,
    by_name: dict[str, LayerResult],
    below: dict[str, list[LayerResult]],
    again: set[int],
) -> LayerNode:
    children = []
    for layer in below.get(name, ()):
        if id(layer) in again:
            children.append(LayerNode(_label(layer.name, name), layer))
        else:
            children.append(_node(layer.name, name, by_name, below, again))
    children.sort(key=lambda child: min(layer.order for layer in child.layers))
    return LayerNode(_label(name, parent), by_name.get(name), tuple(children))


def _label(name: str, parent: str) -> str:
    return name[len(parent) + 1 :] if parent else name


def runs(
    nodes: Sequence[LayerNode], shortest: int = 3, *, alike: bool = False
) -> Iterator[tuple[LayerNode, ...]]:
    """Yield neighbors of one state, if `alike` also of one class, together where there are that many.

    All others come alone.
    """

    def key(node: LayerNode) -> tuple[State, str]:
        return node.state, node.layer.kind if alike and node.layer is not None else ""

    for (state, _), group in groupby(nodes, key=key):
        run = tuple(group)
        if state is State.PARTS or len(run) < shortest:
            yield from ((node,) for node in run)
        else:
            yield run
