"""What of a side is held against the replays: the outputs of a layer, or what a layer inside is given."""

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
class Seen:
    """A tensor of a replay, how it lies at the side, and what the side has."""

    spot: Spot
    pair: TensorPair
    mine: Array


@dataclass(frozen=True)
class Look:
    """What is compared on one input.

    Attributes:
        layer, number: the truth's call that is replayed.
        input: which of the inputs.
        seen: what is held against each other.
        kept: positions [batch, length] that are no padding; None: all are.
    """

    layer: str
    number: int
    input: int
    seen: tuple[Seen, ...]
    kept: Array | None = None


def looks(context: Context) -> list[Look]:
    """What to look at, for the inputs on which the truth has the call, two at most."""
    found = []
    numbers = range(context.truth.inputs) if context.inputs is None else context.inputs
    for number in numbers:
        if _call(context.truth, context.layer, context.number, number) is None:
            continue
        look = _look(context, number)
        if look is not None:
            found.append(dataclasses.replace(look, kept=_kept(context.truth, number)))
        if len(found) == 2:
            break
    return found


def _look(context: Context, number: int) -> Look | None:
    pair, local = _pair(context), context.local
    if local is not None:
        around = None if context.breached_locally or pair is None else _fed(context, pair, number)
        layer, call = around or (context.layer, context.number)
        own = pair if around is None else _speaks(context, layer, call)
        seen = () if own is None else _outputs(own, call, local, number)
        if not seen:
            seen = _consumed(context, local, layer, call, number)
        if seen or layer:
            return Look(layer, call, number, seen)
    elif pair is not None:
        given = _given(context, pair, number)
        if given is not None:
            return given
        seen = _outputs(pair, context.number, context.accumulated, number)
        if seen or context.layer:
            return Look(context.layer, context.number, number, seen)
    return Look("", 0, number, _whole(context, number))


def _fed(context: Context, pair: Pair, number: int) -> tuple[str, int] | None:
    """The layer around, and which call, if it gives this one other arguments than the truth's."""
    assert context.local is not None
    layer, call = context.layer, context.number
    parent = context.truth.layers[layer].parent
    seen = _arguments(context.local, pair, call, number)
    parts = any(_parts(context, one, number, layer, call) for one in seen)
    if parent is None or not parts:
        return None
    around = _around(context.truth, parent, layer, call, number)
    return None if around is None else (parent, around)


def inside(context: Context, look: Look, spots: Iterable[Spot]) -> Look:
    """The look with what the layers inside are given; in order of execution."""
    if context.local is None:
        return look
    found = list(look.seen)
    for spot in spots:
        pair = None if spot.layer is None else _speaks(context, spot.layer, spot.number)
        one = None if pair is None else _argument(context.local, pair, spot, look.input)
        if one is not None:
            found.insert(len(found) - len(look.seen), one)
    return dataclasses.replace(look, seen=tuple(found))


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


def _speaks(context: Context, layer: str, number: int) -> Pair | None:
    """The pair of a call of the truth."""
    for pair in context.alignment.pairs:
        if pair.truth == layer and (pair.number is None or pair.truth_number == number):
            return pair
    return None


def _outputs(pair: Pair, call: int, dump: Dump, number: int) -> tuple[Seen, ...]:
    mine = _call(dump, pair.layer, _side_number(pair, call), number)
    theirs = {} if mine is None else {ref.path: ref for ref in mine.outputs}
    return tuple(
        Seen(Spot(None, 0, one.truth), one, dump.tensor(theirs[one.mine]))
        for one in pair.outputs
        if one.mine in theirs
    )


def _consumed(
    context: Context, dump: Dump, layer: str, number: int, which: int
) -> tuple[Seen, ...]:
    """The outputs of a layer that the side computes in passing: what later layers are given."""
    truth = context.truth
    call = _call(truth, layer, number, which)
    made = {} if call is None else {(ref.file, ref.key): ref.path for ref in call.outputs}
    found: dict[str, Seen] = {}
    for taker in truth.calls:
        pair = _speaks(context, taker.layer, taker.number) if taker.input == which else None
        for ref in taker.arguments if pair is not None else ():
            path = made.get((ref.file, ref.key))
            if path is None or path in found:
                continue
            spot = Spot(taker.layer, taker.number, ref.path)
            one = _argument(dump, pair, spot, which)
            if one is not None:
                found[path] = dataclasses.replace(one, spot=Spot(None, 0, path))
    return tuple(found.values())


def _argument(dump: Dump, pair: Pair | None, spot: Spot, number: int) -> Seen | None:
    if pair is None:
        return None
    mine = _call(dump, pair.layer, _side_number(pair, spot.number), number)
    refs = () if mine is None else mine.arguments
    for one in pair.arguments:
        if one.truth == spot.path:
            ref = next((ref for ref in refs if ref.path == one.mine), None)
            return None if ref is None else Seen(spot, one, dump.tensor(ref))
    return None


def _whole(context: Context, number: int) -> tuple[Seen, ...]:
    dump = context.accumulated
    theirs = {ref.path: ref for ref in dump.outputs.get(number, ())}
    return tuple(
        Seen(Spot(None, 0, one.truth), one, dump.tensor(theirs[one.mine]))
        for one in context.alignment.outputs
        if one.mine in theirs
    )


def _given(context: Context, pair: Pair, number: int) -> Look | None:
    """What the layer was given, where that parts: then the layer around it is replayed."""
    truth = context.truth
    layer, call = context.layer, context.number
    seen = _arguments(context.accumulated, pair, call, number)
    if not any(_parts(context, one, number, layer, call) for one in seen):
        return None
    parent = truth.layers[layer].parent
    while parent:
        above = next((one for one in context.alignment.pairs if one.truth == parent), None)
        around = _around(truth, parent, layer, call, number)
        if above is None or around is None:
            break
        higher = _arguments(context.accumulated, above, around, number)
        if not any(_parts(context, one, number, parent, around) for one in higher):
            break
        layer, call, seen, parent = parent, around, higher, truth.layers[parent].parent
    if parent is None:
        return None
    around = _around(truth, parent, layer, call, number) or 0
    return Look(parent, around, number, seen)


def _arguments(dump: Dump, pair: Pair, call: int, number: int) -> tuple[Seen, ...]:
    found = (
        _argument(dump, pair, Spot(pair.truth, call, one.truth), number) for one in pair.arguments
    )
    return tuple(one for one in found if one is not None)


def _parts(context: Context, one: Seen, number: int, layer: str, call: int) -> bool:
    theirs = _call(context.truth, layer, call, number)
    if theirs is None:
        return False
    refs = {ref.path: ref for ref in theirs.arguments}
    if one.spot.path not in refs:
        return False
    truth = one.pair.as_mine(context.truth.tensor(refs[one.spot.path]))
    return relative(truth, one.mine) > context.noise / 4


def _around(dump: Dump, parent: str, layer: str, call: int, number: int) -> int | None:
    """Which call of `parent` the call of `layer` is in: the first that ends after it."""
    inner = _call(dump, layer, call, number)
    if inner is None:
        return None
    outer = [one for one in dump.of(parent) if one.input == number and one.order > inner.order]
    return min(outer, key=lambda one: one.order).number if outer else None


def _side_number(pair: Pair, call: int) -> int:
    return call if pair.number is None else pair.number


def _call(dump: Dump, layer: str, number: int, which: int) -> Call | None:
    return next(
        (one for one in dump.of(layer) if one.number == number and one.input == which), None
    )


def relative(truth: Array, mine: Array) -> float:
    """Relative L2; where both have NaN, or the same infinity, they are equal; infinite if only one has."""
    if truth.shape != mine.shape:
        return float("inf")
    truth, mine = truth.astype(np.float64), mine.astype(np.float64)
    same = (truth == mine) | (np.isnan(truth) & np.isnan(mine))
    if not (np.isfinite(truth) & np.isfinite(mine) | same).all():
        return float("inf")
    difference = np.where(same, 0.0, mine - np.where(same, 0.0, truth))
    norm = np.linalg.norm(np.where(np.isfinite(truth), truth, 0.0))
    return float(np.linalg.norm(difference) / norm) if norm else float(np.linalg.norm(difference))
