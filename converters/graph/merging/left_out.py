"""Layers that training leaves out by chance (LayerDrop): what takes the place of what they would give.

The model is recorded with all layers, and twice more, without each second one. Where a recording lacks
operators, what these would have given is something else in it: what the layer was given, as a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from converters.graph.draws import DROPOUT
from converters.graph.ir import Call, Fact, Free, Graph, Held, Item, Op, Ref


class LeftOutError(Exception):
    """The recordings do not show what takes the place of a layer."""


@dataclass
class _Run:
    """Items of one call's body, one after the other, that a recording lacks.

    Attributes:
        call: path and number of the call.
        last: the place of the last of them in the body.
        instead: numbers of tensors that they give → what there is in their place.
    """

    call: tuple[str, int]
    last: int
    instead: dict[int, Any] = field(default_factory=dict)


def with_layers_left_out(
    graph: Graph, rates: Sequence[float], without: Callable[[int], Graph]
) -> Graph:
    """The graph with a choice after each layer that is left out by chance.

    Args:
        graph: with all layers.
        rates: of the layers that may be left out, in the order in which they run.
        without: the graph without each second layer, from 0 or from 1.

    Raises:
        LeftOutError: what takes the place of a layer is not known.
    """
    runs: list[tuple[float, _Run]] = []
    for turn in range(min(2, len(rates))):
        found = _Compared(graph, without(turn)).run()
        if len(found) != len(rates[turn::2]):
            raise LeftOutError("the layers that it leaves out by chance cannot be told apart")
        runs += zip(rates[turn::2], found, strict=True)
    return _Chosen(graph, runs).made()


class _Compared:
    """A walk through the recording of all layers and through one that lacks some."""

    def __init__(self, graph: Graph, lacking: Graph) -> None:
        self.graph, self.lacking = graph, lacking
        self.known: dict[int, int] = {}  # in the first recording → in the second
        self.back: dict[int, int] = {}
        self.runs: list[_Run] = []
        self.of: dict[int, _Run] = {}  # a tensor that is lacking → where it is given
        self.assumed: list[tuple[int, Any]] = []

    def run(self) -> list[_Run]:
        for (_, one), (_, other) in zip(self.graph.inputs, self.lacking.inputs, strict=True):
            self._bind(one, other)
        self._call(self.graph.root, self.lacking.root)
        if not self._is(self.graph.outputs, self.lacking.outputs):
            raise LeftOutError("a layer that it leaves out gives an output")
        self._keep()
        # What only such a layer reads is lacking too, and nothing is in its place.
        return [run for run in self.runs if run.instead]

    def _bind(self, one: int, other: int) -> None:
        self.known[one] = other
        self.back.setdefault(other, one)

    def _call(self, one: Call, other: Call) -> None:
        for mine, theirs in _pairs(one.given, other.given):
            self._bind(mine.inside, theirs.inside)
        current: _Run | None = None
        at = 0
        for place, item in enumerate(one.body):
            if at < len(other.body) and self._matches(item, other.body[at]):
                at, current = at + 1, None
                continue
            if current is None:
                current = _Run((one.path, one.number), place)
                self.runs.append(current)
            current.last = place
            self.of |= dict.fromkeys(item.outs, current)
        if at != len(other.body):
            raise LeftOutError("without a layer it does something else")
        for result, expected in _pairs(one.taken, other.taken):
            if not self._is(Ref(result.inside), Ref(expected.inside)):
                raise LeftOutError("without a layer it does something else")
            self._keep()
            self._bind(result.outside, expected.outside)

    def _matches(self, item: Item, other: Item) -> bool:
        """Whether an item is the one of the other recording; then what it gives is known."""
        if isinstance(item, Call) and isinstance(other, Call):
            # The numbers of calls differ where a call of the same module is left out.
            if (item.path, item.method) != (other.path, other.method):
                return False
            pairs = _pairs(item.given, other.given)
            if not all(self._is(mine.value, theirs.value) for mine, theirs in pairs):
                self.assumed.clear()
                return False
            self._keep()
            self._call(item, other)
            return True
        if not isinstance(item, Op) or not isinstance(other, Op) or item.target != other.target:
            return False
        mine, theirs = (item.arguments, dict(item.named)), (other.arguments, dict(other.named))
        if not self._is(mine, theirs) or len(item.outs) != len(other.outs):
            self.assumed.clear()
            return False
        self._keep()
        for out, expected in zip(item.outs, other.outs, strict=True):
            self._bind(out, expected)
        return True

    def _keep(self) -> None:
        """Note what was assumed for a match."""
        for number, value in self.assumed:
            if self.of[number].instead.setdefault(number, value) != value:
                raise LeftOutError("without a layer it does something else")
        self.assumed.clear()

    def _is(self, one: Any, other: Any) -> bool:
        if isinstance(one, Ref) and one.id in self.of:
            if isinstance(other, Ref) and other.id in self.back:
                self.assumed.append((one.id, Ref(self.back[other.id])))
                return True
            if isinstance(other, Held):
                self.assumed.append((one.id, other))
                return True
            return False
        if isinstance(one, Ref) and isinstance(other, Ref):
            return self.known.get(one.id) == other.id
        if isinstance(one, Held) and isinstance(other, Held):
            return one == other or self._constant(one, other)
        if isinstance(one, Free) and isinstance(other, Free):
            return one.hint == other.hint
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            return len(one) == len(other) and all(map(self._is, one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(self._is(one[key], other[key]) for key in one)
        return type(one) is type(other) and (one == other or (one != one and other != other))

    def _constant(self, one: Held, other: Held) -> bool:
        mine, theirs = self.graph.constants.get(one.key), self.lacking.constants.get(other.key)
        return mine is not None and theirs is not None and torch.equal(mine, theirs)


def _pairs(mine: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Arguments or results of two calls by their labels; a call may lack what only a left out layer reads.

    Raises:
        LeftOutError: the second has some that the first has not.
    """
    left = list(mine)
    pairs = []
    for other in theirs:
        one = next((each for each in left if each.label == other.label), None)
        if one is None:
            raise LeftOutError("without a layer it does something else")
        left.remove(one)
        pairs.append((one, other))
    return pairs


class _Chosen:
    """The graph, with a choice after each run."""

    def __init__(self, graph: Graph, runs: Sequence[tuple[float, _Run]]) -> None:
        self.graph = graph
        self.facts: dict[int, Fact] = dict(graph.facts)
        self.runs: Mapping[tuple[str, int], list[tuple[float, _Run]]] = {}
        self.runs = {
            key: [(rate, run) for rate, run in runs if run.call == key]
            for key in {run.call for _, run in runs}
        }

    def made(self) -> Graph:
        root, renamed = self._call(self.graph.root)
        outputs = _renamed(self.graph.outputs, renamed)
        return replace(self.graph, root=root, outputs=outputs, facts=self.facts)

    def _call(self, one: Call) -> tuple[Call, dict[int, int]]:
        """The call, and what its results are called after the choices that it ends with."""
        renamed: dict[int, int] = {}
        body: list[Item] = []
        ends = {run.last: (rate, run) for rate, run in self.runs.get((one.path, one.number), ())}
        for place, item in enumerate(one.body):
            item = _item(item, renamed)
            if isinstance(item, Call):
                item, _ = self._call(item)
            body.append(item)
            if place in ends:
                rate, run = ends[place]
                body += self._choice(rate, run, item, renamed)
        taken = tuple(
            replace(each, inside=renamed.get(each.inside, each.inside)) for each in one.taken
        )
        return replace(one, body=tuple(body), taken=taken), renamed

    def _choice(self, rate: float, run: _Run, item: Item, renamed: dict[int, int]) -> list[Item]:
        """A mask of one number, and for each tensor the layer's where it is kept."""
        frames = item.frames
        ones = self._new(Fact((), torch.float32))
        drawn = self._new(Fact((), torch.float32))
        kept = self._new(Fact((), torch.bool))
        made: list[Item] = [
            Op("aten.ones.default", ((),), {}, (ones,), True, frames),
            Op(DROPOUT, (Ref(ones), rate, (), ""), {}, (drawn,), True, frames),
            Op("aten.gt.Scalar", (Ref(drawn), 0), {}, (kept,), True, frames),
        ]
        for number, value in run.instead.items():
            chosen = self._new(self.facts[number])
            other = _renamed(value, renamed)
            arguments = (Ref(kept), Ref(number), other)
            made.append(Op("aten.where.self", arguments, {}, (chosen,), True, frames))
            renamed[number] = chosen
        return made

    def _new(self, fact: Fact) -> int:
        number = max(self.facts) + 1
        self.facts[number] = fact
        return number


def _item(item: Item, renamed: Mapping[int, int]) -> Item:
    if isinstance(item, Op):
        arguments, named = _renamed(item.arguments, renamed), _renamed(dict(item.named), renamed)
        return replace(item, arguments=arguments, named=named)
    if isinstance(item, Call):
        given = tuple(replace(each, value=_renamed(each.value, renamed)) for each in item.given)
        return replace(item, given=given)
    return item


def _renamed(value: Any, names: Mapping[int, int]) -> Any:
    if isinstance(value, Ref):
        return Ref(names.get(value.id, value.id))
    if isinstance(value, tuple):
        return tuple(_renamed(one, names) for one in value)
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    if isinstance(value, dict):
        return {key: _renamed(one, names) for key, one in value.items()}
    return value
