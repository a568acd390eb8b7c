"""Tensors of a side to compare with the replays: outputs of a layer, or arguments of layers inside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.causes.frame.context import Context
from migrate.parity.causes.frame.replay import Spot
from migrate.parity.dump.dump import Call, Dump
from migrate.parity.ground.alignment import Pair, TensorPair

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ComparedTensor:
    """Tensor of a replay, its layout on the side, and the side's values."""

    spot: Spot
    pair: TensorPair
    mine: Array


@dataclass(frozen=True)
class Comparison:
    """Tensors compared on one input.

    Attributes:
        layer, number: the truth's call that is replayed.
        input: number of the input.
        seen: the compared tensors.
        kept: mask of positions [batch, length] that are no padding; None: all positions count.
    """

    layer: str
    number: int
    input: int
    seen: tuple[ComparedTensor, ...]
    kept: Array | None = None


def looks(context: Context) -> list[Comparison]:
    """Return the comparisons for the inputs on which the truth makes the call, two at most."""
    comparisons = []
    numbers = range(context.truth.inputs) if context.inputs is None else context.inputs
    for number in numbers:
        if _call(context.truth, context.layer, context.number, number) is None:
            continue
        look = _look(context, number)
        if look is not None:
            comparisons.append(dataclasses.replace(look, kept=_kept(context.truth, number)))
        if len(comparisons) == 2:
            break
    return comparisons


def _look(context: Context, number: int) -> Comparison | None:
    pair, local = _pair(context), context.local
    if local is not None:
        around = None if context.breached_locally or pair is None else _fed(context, pair, number)
        layer, call = around or (context.layer, context.number)
        own = pair if around is None else _pair_of_call(context, layer, call)
        seen = () if own is None else _outputs(own, call, local, number)
        if not seen:
            seen = _consumed(context, local, layer, call, number)
        if seen or layer:
            return Comparison(layer, call, number, seen)
    elif pair is not None:
        look = _diverging_arguments(context, pair, number)
        if look is not None:
            return look
        seen = _outputs(pair, context.number, context.accumulated, number)
        if seen or context.layer:
            return Comparison(context.layer, context.number, number, seen)
    return Comparison("", 0, number, _whole(context, number))


def _fed(context: Context, pair: Pair, number: int) -> tuple[str, int] | None:
    """Layer around and number of its call, if the side passes this layer other arguments than the truth."""
    assert context.local is not None
    layer, call = context.layer, context.number
    parent = context.truth.layers[layer].parent
    seen = _arguments(context.local, pair, call, number)
    parts = any(_diverges(context, tensor, number, layer, call) for tensor in seen)
    if parent is None or not parts:
        return None
    around = _around(context.truth, parent, layer, call, number)
    return None if around is None else (parent, around)


def inside(context: Context, look: Comparison, spots: Iterable[Spot]) -> Comparison:
    """Add to a look the arguments of the layers inside, in order of execution."""
    if context.local is None:
        return look
    tensors = list(look.seen)
    for spot in spots:
        pair = None if spot.layer is None else _pair_of_call(context, spot.layer, spot.number)
        tensor = None if pair is None else _argument(context.local, pair, spot, look.input)
        if tensor is not None:
            tensors.insert(len(tensors) - len(look.seen), tensor)
    return dataclasses.replace(look, seen=tuple(tensors))


def _kept(truth: Dump, number: int) -> Array | None:
    call = _call(truth, "", 0, number)
    refs = () if call is None else call.arguments
    mask = next((truth.tensor(ref) for ref in refs if ref.path == "attention_mask"), None)
    return None if mask is None or mask.ndim != 2 else mask != 0


def _pair(context: Context) -> Pair | None:
    for pair in context.alignment.pairs:
        same = pair.layer == context.side_layer and pair.truth == context.layer
        if same and (pair.number is None or pair.truth_number == context.number):
            return pair
    return None


def _pair_of_call(context: Context, layer: str, number: int) -> Pair | None:
    """Pair of a call of the truth."""
    for pair in context.alignment.pairs:
        if pair.truth == layer and (pair.number is None or pair.truth_number == number):
            return pair
    return None


def _outputs(pair: Pair, call: int, dump: Dump, number: int) -> tuple[ComparedTensor, ...]:
    mine = _call(dump, pair.layer, _side_number(pair, call), number)
    theirs = {} if mine is None else {ref.path: ref for ref in mine.outputs}
    return tuple(
        ComparedTensor(Spot(None, 0, output.truth), output, dump.tensor(theirs[output.mine]))
        for output in pair.outputs
        if output.mine in theirs
    )


def _consumed(
    context: Context, dump: Dump, layer: str, number: int, which: int
) -> tuple[ComparedTensor, ...]:
    """Outputs of a layer that the side computes in passing, taken from the arguments of later layers."""
    truth = context.truth
    call = _call(truth, layer, number, which)
    outputs = {} if call is None else {(ref.file, ref.key): ref.path for ref in call.outputs}
    consumed: dict[str, ComparedTensor] = {}
    for taker in truth.calls:
        pair = _pair_of_call(context, taker.layer, taker.number) if taker.input == which else None
        for ref in taker.arguments if pair is not None else ():
            path = outputs.get((ref.file, ref.key))
            if path is None or path in consumed:
                continue
            spot = Spot(taker.layer, taker.number, ref.path)
            tensor = _argument(dump, pair, spot, which)
            if tensor is not None:
                consumed[path] = dataclasses.replace(tensor, spot=Spot(None, 0, path))
    return tuple(consumed.values())


def _argument(dump: Dump, pair: Pair | None, spot: Spot, number: int) -> ComparedTensor | None:
    if pair is None:
        return None
    mine = _call(dump, pair.layer, _side_number(pair, spot.number), number)
    refs = () if mine is None else mine.arguments
    for argument in pair.arguments:
        if argument.truth == spot.path:
            ref = next((ref for ref in refs if ref.path == argument.mine), None)
            return None if ref is None else ComparedTensor(spot, argument, dump.tensor(ref))
    return None


def _whole(context: Context, number: int) -> tuple[ComparedTensor, ...]:
    dump = context.accumulated
    theirs = {ref.path: ref for ref in dump.outputs.get(number, ())}
    return tuple(
        ComparedTensor(Spot(None, 0, output.truth), output, dump.tensor(theirs[output.mine]))
        for output in context.alignment.outputs
        if output.mine in theirs
    )


def _diverging_arguments(context: Context, pair: Pair, number: int) -> Comparison | None:
    """Look at the arguments of the layer, if they diverge: then the layer around it is replayed."""
    truth = context.truth
    layer, call = context.layer, context.number
    seen = _arguments(context.accumulated, pair, call, number)
    if not any(_diverges(context, tensor, number, layer, call) for tensor in seen):
        return None
    parent = truth.layers[layer].parent
    while parent:
        above = next(
            (candidate for candidate in context.alignment.pairs if candidate.truth == parent), None
        )
        around = _around(truth, parent, layer, call, number)
        if above is None or around is None:
            break
        higher = _arguments(context.accumulated, above, around, number)
        if not any(_diverges(context, tensor, number, parent, around) for tensor in higher):
            break
        layer, call, seen, parent = parent, around, higher, truth.layers[parent].parent
    if parent is None:
        return None
    around = _around(truth, parent, layer, call, number) or 0
    return Comparison(parent, around, number, seen)


def _arguments(dump: Dump, pair: Pair, call: int, number: int) -> tuple[ComparedTensor, ...]:
    arguments = (
        _argument(dump, pair, Spot(pair.truth, call, argument.truth), number)
        for argument in pair.arguments
    )
    return tuple(argument for argument in arguments if argument is not None)


def _diverges(context: Context, tensor: ComparedTensor, number: int, layer: str, call: int) -> bool:
    theirs = _call(context.truth, layer, call, number)
    if theirs is None:
        return False
    refs = {ref.path: ref for ref in theirs.arguments}
    if tensor.spot.path not in refs:
        return False
    truth = tensor.pair.as_mine(context.truth.tensor(refs[tensor.spot.path]))
    return relative(truth, tensor.mine) > context.noise / 4


def _around(dump: Dump, parent: str, layer: str, call: int, number: int) -> int | None:
    """Number of the call of `parent` that contains the call of `layer`: the first that ends after it."""
    inner = _call(dump, layer, call, number)
    if inner is None:
        return None
    outer = [
        candidate
        for candidate in dump.of(parent)
        if candidate.input == number and candidate.order > inner.order
    ]
    return min(outer, key=lambda candidate: candidate.order).number if outer else None


def _side_number(pair: Pair, call: int) -> int:
    return call if pair.number is None else pair.number


def _call(dump: Dump, layer: str, number: int, which: int) -> Call | None:
    return next(
        (
            candidate
            for candidate in dump.of(layer)
            if candidate.number == number and candidate.input == which
        ),
        None,
    )


def relative(truth: Array, mine: Array) -> float:
    """Relative L2; NaN equals NaN, and an infinity the same infinity; infinite if only one side has them."""
    if truth.shape != mine.shape:
        return float("inf")
    truth, mine = truth.astype(np.float64), mine.astype(np.float64)
    same = (truth == mine) | (np.isnan(truth) & np.isnan(mine))
    if not (np.isfinite(truth) & np.isfinite(mine) | same).all():
        return float("inf")
    difference = np.where(same, 0.0, mine - np.where(same, 0.0, truth))
    norm = np.linalg.norm(np.where(np.isfinite(truth), truth, 0.0))
    return float(np.linalg.norm(difference) / norm) if norm else float(np.linalg.norm(difference))
