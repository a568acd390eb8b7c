"""A dump's layers as a tree of calls, and the truth's weights that each layer holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from migrate.parity.dump.dump import Call, Dump, Layer

Tokens = frozenset[str]


@dataclass(frozen=True)
class CallNode:
    """Call of a layer on the first input.

    Attributes:
        layer: the layer.
        call: its call.
        tokens: the truth's weights that the layer and the layers inside it hold.
    """

    layer: Layer
    call: Call
    tokens: Tokens

    @property
    def name(self) -> str:
        """Name of the layer."""
        return self.layer.name


class Model:
    """Calls of a dump on its first input.

    Args:
        dump: dump of a side or of the truth.
        weights: the dump's weight names → names of the truth's weights that each is made from.
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
        self._own = self._held(_stacked(dump, weights))
        self.nodes = {
            (name, call.number): CallNode(
                dump.layers[name], call, self._tokens(name, call.number, len(calls))
            )
            for name, calls in self._calls.items()
            for call in calls
        }

    def calls(self, layer: str) -> int:
        """Return how often a layer is called."""
        return len(self._calls.get(layer, ()))

    def called(self) -> Iterable[str]:
        """Return the layers that are called."""
        return self._calls

    def is_leaf(self, layer: str) -> bool:
        """Whether no other layer is called inside this layer."""
        return not self._children.get(layer)

    def inside(self, node: CallNode) -> list[CallNode]:
        """Return the calls made inside a call, in the order in which they end."""
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
            key=lambda child: child.call.order,
        )

    def height(self, layer: str) -> int:
        """Height in the tree of layers: 0 for a leaf, else one more than the highest child."""
        return max((self.height(child) + 1 for child in self._children.get(layer, ())), default=0)

    def _held(self, weights: Mapping[str, tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
        """Return for each layer the truth's names of its weights and of the weights inside it."""
        # Several: the methods `__call__` and `attend` of an embedding are layers of their own.
        owners: dict[str, list[str]] = defaultdict(list)
        for layer in self.dump.layers.values():
            for weight in layer.weights:
                owners[weight].append(layer.name)
        held: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for weight, names in weights.items():
            seen: set[str] = set()
            places: list[str | None] = [*owners[weight]] if weight in owners else [None]
            for place in places:
                if place is None or place not in self._calls:
                    place = self._above(weight if place is None else f"{place}.weight")
                while place is not None and place not in seen:
                    seen.add(place)
                    held[place].append(names)
                    place = self.dump.layers[place].parent if place in self.dump.layers else None
        return held

    def _above(self, weight: str) -> str | None:
        """Return the called layer whose name is the longest prefix of the weight's name: it uses the
        weight.
        """
        parts = weight.split("/" if "/" in weight else ".")
        # Names of linen begin with the collection, names of nnx do not.
        for path in (parts, parts[1:]):
            for end in range(len(path) - 1, 0, -1):
                if (name := ".".join(path[:end])) in self._calls:
                    return name
        return "" if "" in self._calls else None

    def _tokens(self, name: str, number: int, calls: int) -> Tokens:
        """Tokens of a call; of weights stacked for all calls, only the weight of this call."""
        held = self._own.get(name, ())
        if calls > 1 and held and all(len(names) == calls for names in held):
            return frozenset(names[number] for names in held)
        return frozenset(token for names in held for token in names)


def _stacked(dump: Dump, weights: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """Return the weights with those that a dump's layers have stacked put together, in order."""
    together = dict(weights)
    for layer in dump.layers.values():
        for name, parts in layer.stacks.items():
            pieces = [together.pop(part, ()) for part in parts]
            together[name] = tuple(truth for names in pieces for truth in names)
    return together
