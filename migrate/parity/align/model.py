"""A dump's layers as a tree of calls, and which of the truth's weights each holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from migrate.parity.dump.dump import Call, Dump, Layer

Tokens = frozenset[str]


@dataclass(frozen=True)
class Node:
    """One call of a layer on the first input.

    Attributes:
        layer: the layer.
        call: its call.
        tokens: the truth's weights that it and the layers inside it hold.
    """

    layer: Layer
    call: Call
    tokens: Tokens

    @property
    def name(self) -> str:
        """Of its layer."""
        return self.layer.name


class Model:
    """The calls of a dump on its first input.

    Args:
        dump: of a side or of the truth.
        weights: the dump's weight names → the truth's that each is made from.
    """

    def __init__(self, dump: Dump, weights: Mapping[str, tuple[str, ...]]) -> None:
        self.dump = dump
        first = min((call.input for call in dump.calls), default=0)
        self._calls: dict[str, list[Call]] = defaultdict(list)
        for call in sorted(dump.calls, key=lambda call: call.order):
            if call.input == first and call.layer in dump.layers:
                self._calls[call.layer].append(call)
        self._children: dict[str, list[str]] = defaultdict(list)
        for layer in dump.layers.values():
            if layer.parent is not None and layer.name in self._calls:
                self._children[layer.parent].append(layer.name)
        self._own = self._held(weights)
        self.nodes = {
            (name, call.number): Node(
                dump.layers[name], call, self._tokens(name, call.number, len(calls))
            )
            for name, calls in self._calls.items()
            for call in calls
        }

    def calls(self, layer: str) -> int:
        """How often it is called."""
        return len(self._calls.get(layer, ()))

    def called(self) -> Iterable[str]:
        """The layers that are called."""
        return self._calls

    def is_leaf(self, layer: str) -> bool:
        """Whether no layer is called inside it."""
        return not self._children.get(layer)

    def inside(self, node: Node) -> list[Node]:
        """The calls that are made in this one, in the order in which they end."""
        before = -1
        for call in self._calls[node.name]:
            if call.order < node.call.order:
                before = max(before, call.order)
        return sorted(
            (
                self.nodes[name, call.number]
                for name in self._children.get(node.name, ())
                for call in self._calls[name]
                if before < call.order < node.call.order
            ),
            key=lambda one: one.call.order,
        )

    def height(self, layer: str) -> int:
        """0 for a leaf, else one more than the highest inside it."""
        return max((self.height(one) + 1 for one in self._children.get(layer, ())), default=0)

    def _held(self, weights: Mapping[str, tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
        """Of each layer, the truth's names of its weights and of those inside it."""
        owner = {
            weight: layer.name for layer in self.dump.layers.values() for weight in layer.weights
        }
        found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for weight, names in weights.items():
            place: str | None = owner.get(weight)
            if place is None or place not in self._calls:
                place = self._above(weight if place is None else f"{place}.weight")
            seen: set[str] = set()
            while place is not None and place not in seen:
                seen.add(place)
                found[place].append(names)
                place = self.dump.layers[place].parent if place in self.dump.layers else None
        return found

    def _above(self, weight: str) -> str | None:
        """The called layer with the longest name that the weight's begins with: it uses it."""
        parts = weight.split("/" if "/" in weight else ".")
        # linen's begin with the collection, nnx's do not.
        for path in (parts, parts[1:]):
            for end in range(len(path) - 1, 0, -1):
                if (name := ".".join(path[:end])) in self._calls:
                    return name
        return "" if "" in self._calls else None

    def _tokens(self, name: str, number: int, calls: int) -> Tokens:
        """Of one call: of weights that are stacked for all calls, the one that is this call's."""
        held = self._own.get(name, ())
        if calls > 1 and held and all(len(names) == calls for names in held):
            return frozenset(names[number] for names in held)
        return frozenset(one for names in held for one in names)
