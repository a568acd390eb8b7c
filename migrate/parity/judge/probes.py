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

from migrate.parity.dump.dump import Call, Dump, TensorRef
from migrate.parity.ground.alignment import LayerAlignment, Pair, TensorPair

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
    alignment: LayerAlignment
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
            given = {(ref.file, ref.key) for ref in call.arguments}
            for ref in call.outputs:
                if (ref.file, ref.key) in given:
                    continue  # handed through, as Identity does: somebody else made it
                self._makers.setdefault((call.input, ref.file, ref.key), (call, ref.path))

    def maker(self, number: int, ref: TensorRef) -> tuple[Call, str] | None:
        """The call that puts out a tensor of this input, and under which path."""
        return self._makers.get((number, ref.file, ref.key))

    def is_given(self, layer: str, number: int, ref: TensorRef) -> bool:
        """Whether a layer is given a tensor of this input, as a Sequential is what its first layer gets."""
        return any(
            (one.file, one.key) == (ref.file, ref.key)
            for call in self.by_layer[layer]
            if call.input == number
            for one in call.arguments
        )


class Partners:
    """What of a side's call is measured against what of the truth's.

    Args:
        calls: the truth's.
        alignment: of the side.
    """

    def __init__(self, calls: Calls, alignment: LayerAlignment) -> None:
        self._calls, self._alignment = calls, alignment
        self._aligned = {pair.truth for pair in alignment.pairs}

    def of(self, layer: str, number: int, input: int) -> tuple[Pair, Call] | None:  # noqa: A002
        """The pair of a side's call, and the truth's call."""
        found = self._alignment.pair(layer, number)
        if found is None:
            return None
        truth = self._calls.by_key.get((found[0].truth, found[1], input))
        return None if truth is None else (found[0], truth)

    def outputs(self, pair: Pair, truth: Call, made: tuple[TensorRef, ...]) -> Iterator[Probe]:
        """What a call puts out."""
        refs, mine = _by_path(truth.outputs), _by_path(made)
        for one in pair.outputs:
            if one.truth in refs and one.mine in mine:
                place = Place("output", truth.layer, truth.number, one.truth)
                yield Probe(place, truth.input, one, refs[one.truth], mine[one.mine])

    def arguments(
        self, pair: Pair, truth: Call, given: tuple[TensorRef, ...]
    ) -> Iterator[tuple[str, Probe]]:
        """What a call is given, with the layer of the truth that computes it."""
        refs, mine = _by_path(truth.arguments), _by_path(given)
        for one in pair.arguments:
            if one.truth not in refs or one.mine not in mine:
                continue
            ref = refs[one.truth]
            place = Place("argument", truth.layer, truth.number, one.truth)
            owner = self._calls.dump.layers[truth.layer].parent
            maker = self._calls.maker(truth.input, ref)
            while owner is not None and self._hands_down(owner, truth.input, ref):
                owner = self._calls.dump.layers[owner].parent
            if maker is not None and maker[0].layer not in self._aligned:
                # The side computes in passing what is a layer of the truth's.
                owner = maker[0].layer
                place = Place("output", owner, maker[0].number, maker[1])
            if owner is not None:
                yield owner, Probe(place, truth.input, one, ref, mine[one.mine])

    def _hands_down(self, layer: str, number: int, ref: TensorRef) -> bool:
        """Whether a layer, which the side does not have, only hands a tensor on to one inside it."""
        return layer not in self._aligned and self._calls.is_given(layer, number, ref)


class Probes:
    """What there is to measure of one dump of a side.

    Args:
        calls: the truth's.
        dump: of the side.
        alignment: with the truth.
        fed: whether its layers were fed with the truth's inputs.
    """

    def __init__(self, calls: Calls, dump: Dump, alignment: LayerAlignment, *, fed: bool) -> None:
        self.dump, self._calls = dump, calls
        self._partners = Partners(calls, alignment)
        self.by_key: dict[CallKey, tuple[Pair, Call]] = {}
        self._given: dict[str, list[Probe]] = defaultdict(list)
        for call in dump.calls:
            found = self._partners.of(call.layer, call.number, call.input)
            if found is None:
                continue
            pair, truth = found
            key = (truth.layer, truth.number, truth.input)
            if key in self.by_key:
                continue
            self.by_key[key] = pair, call
            for owner, probe in (
                self._partners.arguments(pair, truth, call.arguments) if fed else ()
            ):
                self._given[owner].append(probe)

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
            if found is not None:
                yield from self._partners.outputs(found[0], truth, found[1].outputs)
        yield from self._given.get(layer, ())

    def fed(self, layer: str) -> bool:
        """Whether a layer was fed: it takes no tensors, or one of them has a partner."""
        pair = self.pair(layer)
        return pair is not None and (
            bool(pair.arguments) or not any(call.arguments for call in self._calls.by_layer[layer])
        )


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
