"""Layers that training leaves out by chance (LayerDrop), and the values used in their place.

The model is recorded with all layers, and twice more, each time without every second layer. Where a
recording lacks operators, it uses another value for their results, usually the layer's input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from converters.graph.draws import DROPOUT
from converters.graph.ir import Call, Fact, Graph, Held, Item, Op, Ref
from converters.graph.merging.same_values import SameValues


class LeftOutError(Exception):
    """The recordings do not show what replaces a layer."""


@dataclass
class _LackingRun:
    """Consecutive items of one call's body that a recording lacks.

    Attributes:
        call: path and number of the call.
        last: index of the last of these items in the body.
        instead: numbers of tensors that they give → the values that replace them.
    """

    call: tuple[str, int]
    last: int
    instead: dict[int, Any] = field(default_factory=dict)


def with_layers_left_out(
    graph: Graph, rates: Sequence[float], without: Callable[[int], Graph]
) -> Graph:
    """The graph with a choice after each layer that is left out by chance.

    Args:
        graph: the graph with all layers.
        rates: rates of the layers that may be left out, in the order in which they run.
        without: the graph without every second layer, from 0 or from 1.

    Raises:
        LeftOutError: the replacement of a layer is unknown.
    """
    runs: list[tuple[float, _LackingRun]] = []
    for turn in range(min(2, len(rates))):
        lacking = _Compared(graph, without(turn)).run()
        if len(lacking) != len(rates[turn::2]):
            raise LeftOutError("the layers that it leaves out by chance cannot be told apart")
        runs += zip(rates[turn::2], lacking, strict=True)
    return _Chosen(graph, runs).made()


class _Compared(SameValues):
    """A walk in parallel through the recording of all layers and a recording that lacks some."""

    def __init__(self, graph: Graph, lacking: Graph) -> None:
        super().__init__(graph, lacking)
        self.back: dict[int, int] = {}
        self.runs: list[_LackingRun] = []
        self.of: dict[int, _LackingRun] = {}  # a tensor that is lacking → where it is given
        self.assumed: list[tuple[int, Any]] = []

    def run(self) -> list[_LackingRun]:
        for (_, number), (_, other) in zip(self.first.inputs, self.second.inputs, strict=True):
            self._bind(number, other)
        self._call(self.first.root, self.second.root)
        if not self.is_same(self.first.outputs, self.second.outputs):
            raise LeftOutError("a layer that it leaves out gives an output")
        self._keep()
        # Items that only such a layer reads are lacking too, and nothing replaces them.
        return [run for run in self.runs if run.instead]

    def _bind(self, number: int, other: int) -> None:
        self.known[number] = other
        self.back.setdefault(other, number)

    def _call(self, call: Call, other: Call) -> None:
        for mine, theirs in _pairs(call.arguments, other.arguments):
            self._bind(mine.inside, theirs.inside)
        current: _LackingRun | None = None
        at = 0
        for place, item in enumerate(call.body):
            if at < len(other.body) and self._matches(item, other.body[at]):
                at, current = at + 1, None
                continue
            if current is None:
                current = _LackingRun((call.path, call.number), place)
                self.runs.append(current)
            current.last = place
            self.of |= dict.fromkeys(item.outs, current)
        if at != len(other.body):
            raise LeftOutError("without a layer it does something else")
        for result, expected in _pairs(call.taken, other.taken):
            if not self.is_same(Ref(result.inside), Ref(expected.inside)):
                raise LeftOutError("without a layer it does something else")
            self._keep()
            self._bind(result.outside, expected.outside)

    def _matches(self, item: Item, other: Item) -> bool:
        """Whether an item equals the item of the other recording; if so, bind their results."""
        if isinstance(item, Call) and isinstance(other, Call):
            # The numbers of calls differ where a call of the same module is left out.
            if (item.path, item.method) != (other.path, other.method):
                return False
            pairs = _pairs(item.arguments, other.arguments)
            if not all(self.is_same(mine.value, theirs.value) for mine, theirs in pairs):
                self.assumed.clear()
                return False
            self._keep()
            self._call(item, other)
            return True
        if not isinstance(item, Op) or not isinstance(other, Op) or item.target != other.target:
            return False
        mine, theirs = (item.arguments, dict(item.named)), (other.arguments, dict(other.named))
        if not self.is_same(mine, theirs) or len(item.outs) != len(other.outs):
            self.assumed.clear()
            return False
        self._keep()
        for out, expected in zip(item.outs, other.outs, strict=True):
            self._bind(out, expected)
        return True

    def _keep(self) -> None:
        """Record what was assumed for a match."""
        for number, value in self.assumed:
            if self.of[number].instead.setdefault(number, value) != value:
                raise LeftOutError("without a layer it does something else")
        self.assumed.clear()

    def is_same(self, value: Any, other: Any) -> bool:
        """Whether two values are equal; for a tensor that is lacking, assume the other's value."""
        if not isinstance(value, Ref) or value.id not in self.of:
            return super().is_same(value, other)
        if isinstance(other, Ref) and other.id in self.back:
            self.assumed.append((value.id, Ref(self.back[other.id])))
            return True
        if isinstance(other, Held):
            self.assumed.append((value.id, other))
            return True
        return False


def _pairs(mine: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs of arguments or results of two calls by label; the second call may lack some.

    The second call lacks what only a left out layer reads.

    Raises:
        LeftOutError: the second call has some that the first call lacks.
    """
    left = list(mine)
    pairs = []
    for other in theirs:
        match = next((each for each in left if each.label == other.label), None)
        if match is None:
            raise LeftOutError("without a layer it does something else")
        left.remove(match)
        pairs.append((match, other))
    return pairs


class _Chosen:
    """The graph, with a choice after each run."""

    def __init__(self, graph: Graph, runs: Sequence[tuple[float, _LackingRun]]) -> None:
        self.graph = graph
        self.facts: dict[int, Fact] = dict(graph.facts)
        self.runs: Mapping[tuple[str, int], list[tuple[float, _LackingRun]]] = {}
        self.runs = {
            key: [(rate, run) for rate, run in runs if run.call == key]
            for key in {run.call for _, run in runs}
        }

    def made(self) -> Graph:
        root, renamed = self._call(self.graph.root)
        outputs = _renamed(self.graph.outputs, renamed)
        return replace(self.graph, root=root, outputs=outputs, facts=self.facts)

    def _call(self, call: Call) -> tuple[Call, dict[int, int]]:
        """The call, and new names of its results after the choices at its end."""
        renamed: dict[int, int] = {}
        body: list[Item] = []
        ends = {run.last: (rate, run) for rate, run in self.runs.get((call.path, call.number), ())}
        for place, item in enumerate(call.body):
            item = _item(item, renamed)
            if isinstance(item, Call):
                item, _ = self._call(item)
            body.append(item)
            if place in ends:
                rate, run = ends[place]
                body += self._choice(rate, run, item, renamed)
        taken = tuple(
            replace(each, inside=renamed.get(each.inside, each.inside)) for each in call.taken
        )
        return replace(call, body=tuple(body), taken=taken), renamed

    def _choice(
        self, rate: float, run: _LackingRun, item: Item, renamed: dict[int, int]
    ) -> list[Item]:
        """A mask of one number, and for each tensor a choice of the layer's value where it is kept."""
        frames = item.frames
        ones = self._new(Fact((), torch.float32))
        drawn = self._new(Fact((), torch.float32))
        kept = self._new(Fact((), torch.bool))
        choice: list[Item] = [
            Op("aten.ones.default", ((),), {}, (ones,), True, frames),
            Op(DROPOUT, (Ref(ones), rate, (), ""), {}, (drawn,), True, frames),
            Op("aten.gt.Scalar", (Ref(drawn), 0), {}, (kept,), True, frames),
        ]
        for number, value in run.instead.items():
            chosen = self._new(self.facts[number])
            other = _renamed(value, renamed)
            arguments = (Ref(kept), Ref(number), other)
            choice.append(Op("aten.where.self", arguments, {}, (chosen,), True, frames))
            renamed[number] = chosen
        return choice

    def _new(self, fact: Fact) -> int:
        number = max(self.facts) + 1
        self.facts[number] = fact
        return number


def _item(item: Item, renamed: Mapping[int, int]) -> Item:
    if isinstance(item, Op):
        arguments, named = _renamed(item.arguments, renamed), _renamed(dict(item.named), renamed)
        return replace(item, arguments=arguments, named=named)
    if isinstance(item, Call):
        passed = tuple(
            replace(each, value=_renamed(each.value, renamed)) for each in item.arguments
        )
        return replace(item, arguments=passed)
    return item


def _renamed(value: Any, names: Mapping[int, int]) -> Any:
    if isinstance(value, Ref):
        return Ref(names.get(value.id, value.id))
    if isinstance(value, tuple):
        return tuple(_renamed(element, names) for element in value)
    if isinstance(value, list):
        return [_renamed(element, names) for element in value]
    if isinstance(value, dict):
        return {key: _renamed(element, names) for key, element in value.items()}
    return value
