"""What is measured of a layer: its outputs, and what it gives to the layers that it calls.

A layer that is fed with the truth's inputs, and goes on with the truth's outputs of the layers inside it,
shows what it computes itself in two places: in its own outputs, and in the arguments that it gives to the
layers inside it. A functional activation between two dense layers is seen in what the second is given, and
nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.alignment import Alignment, Pair, TensorPair
from migrate.parity.dump import Call, Dump, TensorRef

CallKey = tuple[str, int, int]  # layer of the truth, number, input


@dataclass(frozen=True)
class Judged:
    """A side as it is judged.

    Attributes:
        accumulated: dump of the model as it runs.
        local: dump with every layer fed with the truth's inputs; None: there is none.
        alignment: with the truth.
        dtype: of its parameters; "" takes that of its facts.
    """

    accumulated: Dump
    local: Dump | None
    alignment: Alignment
    dtype: str = ""


@dataclass(frozen=True)
class Place:
    """A tensor of the truth.

    Attributes:
        what: "output", or "argument": what the layer gives to one that it calls.
        layer, number: whose output or argument, and of which call.
        path: of the tensor.
    """

    what: str
    layer: str
    number: int
    path: str

    @property
    def order(self) -> tuple[bool, int]:
        """Arguments come before the outputs."""
        return self.what == "output", self.number


@dataclass(frozen=True)
class Probe:
    """A tensor of a side with the truth's, on one input.

    Attributes:
        place: which of the truth's.
        input: number of the input.
        pair: how they lie.
        truth, mine: the tensors.
    """

    place: Place
    input: int
    pair: TensorPair
    truth: TensorRef
    mine: TensorRef


class Calls:
    """The truth's calls by layer, and from which layer each of its tensors comes."""

    def __init__(self, truth: Dump) -> None:
        self.dump = truth
        self.by_layer: dict[str, list[Call]] = defaultdict(list)
        self.by_key: dict[CallKey, Call] = {}
        # Of tensors that several layers put out, the first to end: the innermost.
        self._makers: dict[tuple[int, str, str], tuple[Call, str]] = {}
        for call in sorted(truth.calls, key=lambda call: (call.input, call.order)):
            self.by_layer[call.layer].append(call)
            self.by_key[call.layer, call.number, call.input] = call
            for ref in call.outputs:
                self._makers.setdefault((call.input, ref.file, ref.key), (call, ref.path))

    def maker(self, number: int, ref: TensorRef) -> tuple[Call, str] | None:
        """The call that puts out a tensor of this input, and under which path."""
        return self._makers.get((number, ref.file, ref.key))


class Probes:
    """What there is to measure of one dump of a side.

    Args:
        calls: the truth's.
        dump: of the side.
        alignment: with the truth.
        fed: whether its layers were fed with the truth's inputs.
    """

    def __init__(self, calls: Calls, dump: Dump, alignment: Alignment, *, fed: bool) -> None:
        self.dump, self._calls, self._alignment = dump, calls, alignment
        self._aligned = {pair.truth for pair in alignment.pairs}
        self.by_key: dict[CallKey, tuple[Pair, Call]] = {}
        self._given: dict[str, list[tuple[Place, int, TensorPair, TensorRef, TensorRef]]]
        self._given = defaultdict(list)
        for call in dump.calls:
            found = alignment.pair(call.layer, call.number)
            if found is None:
                continue
            key = (found[0].truth, found[1], call.input)
            if key in calls.by_key and key not in self.by_key:
                self.by_key[key] = found[0], call
                if fed:
                    self._give(found[0], calls.by_key[key], call)

    def pair(self, layer: str) -> Pair | None:
        """The pair of a layer of the truth."""
        return next(
            (
                self.by_key[key][0]
                for call in self._calls.by_layer[layer]
                if (key := (layer, call.number, call.input)) in self.by_key
            ),
            None,
        )

    def of(self, layer: str) -> Iterator[Probe]:
        """What is measured of a layer of the truth, input by input."""
        for truth in self._calls.by_layer[layer]:
            found = self.by_key.get((layer, truth.number, truth.input))
            if found is None:
                continue
            refs, mine = _by_path(truth.outputs), _by_path(found[1].outputs)
            for pair in found[0].outputs:
                if pair.truth in refs and pair.mine in mine:
                    place = Place("output", layer, truth.number, pair.truth)
                    yield Probe(place, truth.input, pair, refs[pair.truth], mine[pair.mine])
        for given in self._given.get(layer, ()):
            yield Probe(*given)

    def fed(self, layer: str) -> bool:
        """Whether a layer was fed: it takes no tensors, or one of them has a partner."""
        pair = self.pair(layer)
        return pair is not None and (
            bool(pair.arguments) or not any(call.arguments for call in self._calls.by_layer[layer])
        )

    def _give(self, pair: Pair, truth: Call, mine: Call) -> None:
        """Lay what a call was given to the account of the layer that computed it."""
        refs, given = _by_path(truth.arguments), _by_path(mine.arguments)
        for one in pair.arguments:
            if one.truth not in refs or one.mine not in given:
                continue
            ref = refs[one.truth]
            place = Place("argument", truth.layer, truth.number, one.truth)
            owner = self._calls.dump.layers[truth.layer].parent
            maker = self._calls.maker(truth.input, ref)
            if maker is not None and maker[0].layer not in self._aligned:
                # The side computes in passing what is a layer of the truth's.
                owner = maker[0].layer
                place = Place("output", owner, maker[0].number, maker[1])
            if owner is not None:
                self._given[owner].append((place, truth.input, one, ref, given[one.mine]))


def _by_path(refs: tuple[TensorRef, ...]) -> dict[str, TensorRef]:
    return {ref.path: ref for ref in refs}


def lie_as(
    pair: TensorPair, truth: np.ndarray[Any, Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any] | None:
    """The truth's array as a side's of this shape lies; None: it cannot.

    The pair was found on the first input; others may be longer.
    """
    try:
        lying: np.ndarray[Any, Any] = pair.as_mine(truth)
    except ValueError:
        if pair.split is not None:
            return None
        lying = truth if pair.axes is None else truth.transpose(pair.axes)
    if lying.shape == shape:
        return lying
    same = pair.shape is not None and lying.size == int(np.prod(shape))
    return lying.reshape(shape) if same else None
