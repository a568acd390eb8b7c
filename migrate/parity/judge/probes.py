"""Probes of a layer: the tensors to measure, which are its outputs and the arguments it passes on.

A layer that is fed with the truth's inputs, and continues with the truth's outputs of the layers inside it,
shows its own computation in two places: in its outputs, and in the arguments that it passes to the layers
inside it. A functional activation between two dense layers is only visible in the second layer's argument.
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
    """Side to be judged.

    Attributes:
        accumulated: dump of an ordinary run of the model.
        local: dump with every layer fed with the truth's inputs; None: there is no such dump.
        alignment: alignment with the truth.
        dtype: dtype of its parameters; "" takes the dtype of its facts.
    """

    accumulated: Dump
    local: Dump | None
    alignment: LayerAlignment
    dtype: str = ""


@dataclass(frozen=True)
class TensorLocation:
    """Location of a tensor of the truth.

    Attributes:
        what: "output", or "argument": an argument that the layer passes to a layer that it calls.
        layer, number: the layer with the output or argument, and the number of the call.
        path: path of the tensor.
    """

    what: str
    layer: str
    number: int
    path: str

    @property
    def order(self) -> tuple[bool, int]:
        """Sort key: arguments come before outputs."""
        return self.what == "output", self.number


@dataclass(frozen=True)
class TensorProbe:
    """Tensor of a side with the truth's, on one input.

    Attributes:
        place: location of the truth's tensor.
        input: number of the input.
        pair: layout of the two.
        truth, mine: the tensors.
    """

    place: TensorLocation
    input: int
    pair: TensorPair
    truth: TensorRef
    mine: TensorRef


class Calls:
    """Calls of the truth by layer, and the layer that each tensor comes from."""

    def __init__(self, truth: Dump) -> None:
        self.dump = truth
        self.by_layer: dict[str, list[Call]] = defaultdict(list)
        self.by_key: dict[CallKey, Call] = {}
        # For a tensor that several layers return, the first layer to end: the innermost.
        self._makers: dict[tuple[int, str, str], tuple[Call, str]] = {}
        for call in sorted(truth.calls, key=lambda call: (call.input, call.order)):
            self.by_layer[call.layer].append(call)
            self.by_key[call.layer, call.number, call.input] = call
            arguments = {(ref.file, ref.key) for ref in call.arguments}
            for ref in call.outputs:
                if (ref.file, ref.key) in arguments:
                    continue  # passed through, as by Identity: another call made it
                self._makers.setdefault((call.input, ref.file, ref.key), (call, ref.path))

    def maker(self, number: int, ref: TensorRef) -> tuple[Call, str] | None:
        """Call that returns a tensor of this input, and the tensor's path there."""
        return self._makers.get((number, ref.file, ref.key))

    def is_given(self, layer: str, number: int, ref: TensorRef) -> bool:
        """Whether a layer receives a tensor of this input, as a Sequential receives its first layer's
        input.
        """
        return any(
            (argument.file, argument.key) == (ref.file, ref.key)
            for call in self.by_layer[layer]
            if call.input == number
            for argument in call.arguments
        )


class Partners:
    """Pairs of a side's calls with the truth's calls, for measurement.

    Args:
        calls: the truth's calls.
        alignment: alignment of the side.
    """

    def __init__(self, calls: Calls, alignment: LayerAlignment) -> None:
        self._calls, self._alignment = calls, alignment
        self._aligned = {pair.truth for pair in alignment.pairs}

    def of(self, layer: str, number: int, input: int) -> tuple[Pair, Call] | None:  # noqa: A002
        """Pair of a side's call, and the truth's call."""
        match = self._alignment.pair(layer, number)
        if match is None:
            return None
        truth = self._calls.by_key.get((match[0].truth, match[1], input))
        return None if truth is None else (match[0], truth)

    def outputs(
        self, pair: Pair, truth: Call, returned: tuple[TensorRef, ...]
    ) -> Iterator[TensorProbe]:
        """Yield a probe for each output of a call."""
        refs, mine = _by_path(truth.outputs), _by_path(returned)
        for tensor in pair.outputs:
            if tensor.truth in refs and tensor.mine in mine:
                place = TensorLocation("output", truth.layer, truth.number, tensor.truth)
                yield TensorProbe(place, truth.input, tensor, refs[tensor.truth], mine[tensor.mine])

    def arguments(
        self, pair: Pair, truth: Call, received: tuple[TensorRef, ...]
    ) -> Iterator[tuple[str, TensorProbe]]:
        """Yield a probe for each argument of a call, with the layer of the truth that computes it."""
        refs, mine = _by_path(truth.arguments), _by_path(received)
        for tensor in pair.arguments:
            if tensor.truth not in refs or tensor.mine not in mine:
                continue
            ref = refs[tensor.truth]
            place = TensorLocation("argument", truth.layer, truth.number, tensor.truth)
            owner = self._calls.dump.layers[truth.layer].parent
            maker = self._calls.maker(truth.input, ref)
            while owner is not None and self._hands_down(owner, truth.input, ref):
                owner = self._calls.dump.layers[owner].parent
            if maker is not None and maker[0].layer not in self._aligned:
                # The side computes in passing what a layer of the truth computes.
                owner = maker[0].layer
                place = TensorLocation("output", owner, maker[0].number, maker[1])
            if owner is not None:
                yield owner, TensorProbe(place, truth.input, tensor, ref, mine[tensor.mine])

    def _hands_down(self, layer: str, number: int, ref: TensorRef) -> bool:
        """Whether a layer, which the side does not have, only passes a tensor on to a layer inside it."""
        return layer not in self._aligned and self._calls.is_given(layer, number, ref)


class Probes:
    """Tensors to measure in a dump of a side.

    Args:
        calls: the truth's calls.
        dump: dump of the side.
        alignment: alignment with the truth.
        fed: whether its layers were fed with the truth's inputs.
    """

    def __init__(self, calls: Calls, dump: Dump, alignment: LayerAlignment, *, fed: bool) -> None:
        self.dump, self._calls = dump, calls
        self._partners = Partners(calls, alignment)
        self.by_key: dict[CallKey, tuple[Pair, Call]] = {}
        self._given: dict[str, list[TensorProbe]] = defaultdict(list)
        for call in dump.calls:
            match = self._partners.of(call.layer, call.number, call.input)
            if match is None:
                continue
            pair, truth = match
            key = (truth.layer, truth.number, truth.input)
            if key in self.by_key:
                continue
            self.by_key[key] = pair, call
            for owner, probe in (
                self._partners.arguments(pair, truth, call.arguments) if fed else ()
            ):
                self._given[owner].append(probe)

    def pair(self, layer: str) -> Pair | None:
        """Pair of a layer of the truth."""
        return next(
            (
                self.by_key[key][0]
                for call in self._calls.by_layer[layer]
                if (key := (layer, call.number, call.input)) in self.by_key
            ),
            None,
        )

    def of(self, layer: str) -> Iterator[TensorProbe]:
        """Yield the probes of a layer of the truth, input by input."""
        for truth in self._calls.by_layer[layer]:
            match = self.by_key.get((layer, truth.number, truth.input))
            if match is not None:
                yield from self._partners.outputs(match[0], truth, match[1].outputs)
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
    """Truth's array in the layout of a side with this shape; None: there is none.

    The pair was found on the first input; other inputs may be longer.
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
