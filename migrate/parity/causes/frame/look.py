"""What of a side is held against the replays: the outputs of a layer, or what a layer inside is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.parity.alignment import Pair, TensorPair
from migrate.parity.causes.frame.context import Context
from migrate.parity.causes.frame.replay import Spot
from migrate.parity.dump import Call, Dump

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Look:
    """What is compared on one input.

    Attributes:
        layer, number: the truth's call that is replayed.
        input: which of the inputs.
        seen: of the replay, how it lies at the side, and what the side has.
    """

    layer: str
    number: int
    input: int
    seen: tuple[tuple[Spot, TensorPair, Array], ...]


def looks(context: Context) -> list[Look]:
    """What to look at, for the inputs on which the side and the truth have the call, two at most."""
    found = []
    for number in range(context.truth.inputs):
        look = _look(context, number)
        if look is not None:
            found.append(look)
        if len(found) == 2:
            break
    return found


def _look(context: Context, number: int) -> Look | None:
    pair = _pair(context)
    if pair is None:
        return _whole(context, number) if not context.layer else None
    if context.breached_locally and context.local is not None:
        return _outputs(context, pair, context.local, number)
    return _given(context, pair, number) or _outputs(context, pair, context.accumulated, number)


def _pair(context: Context) -> Pair | None:
    for pair in context.alignment.pairs:
        same = pair.layer == context.side_layer and pair.truth == context.layer
        if same and (pair.number is None or pair.truth_number == context.number):
            return pair
    return None


def _outputs(context: Context, pair: Pair, dump: Dump, number: int) -> Look | None:
    mine = _call(dump, pair.layer, _side_number(pair, context.number), number)
    if mine is None:
        return None
    theirs = {ref.path: ref for ref in mine.outputs}
    seen = tuple(
        (Spot(None, 0, one.truth), one, dump.tensor(theirs[one.mine]))
        for one in pair.outputs
        if one.mine in theirs
    )
    return Look(context.layer, context.number, number, seen) if seen else None


def _whole(context: Context, number: int) -> Look | None:
    dump = context.accumulated
    theirs = {ref.path: ref for ref in dump.outputs.get(number, ())}
    seen = tuple(
        (Spot(None, 0, one.truth), one, dump.tensor(theirs[one.mine]))
        for one in context.alignment.outputs
        if one.mine in theirs
    )
    return Look("", 0, number, seen) if seen else None


def _given(context: Context, pair: Pair, number: int) -> Look | None:
    """What the layer was given, where that parts: then the layer around it is replayed."""
    truth = context.truth
    layer, call = context.layer, context.number
    seen = _arguments(context, pair, call, number)
    if not any(_parts(context, one, number, layer, call) for one in seen):
        return None
    parent = truth.layers[layer].parent
    while parent:
        above = next((one for one in context.alignment.pairs if one.truth == parent), None)
        around = _around(truth, parent, layer, call, number)
        if above is None or around is None:
            break
        higher = _arguments(context, above, around, number)
        if not any(_parts(context, one, number, parent, around) for one in higher):
            break
        layer, call, seen, parent = parent, around, higher, truth.layers[parent].parent
    if parent is None:
        return None
    around = _around(truth, parent, layer, call, number) or 0
    return Look(parent, around, number, tuple(one for one in seen))


def _arguments(
    context: Context, pair: Pair, call: int, number: int
) -> tuple[tuple[Spot, TensorPair, Array], ...]:
    dump = context.accumulated
    mine = _call(dump, pair.layer, _side_number(pair, call), number)
    theirs: Mapping[str, Any] = {} if mine is None else {ref.path: ref for ref in mine.arguments}
    return tuple(
        (Spot(pair.truth, call, one.truth), one, dump.tensor(theirs[one.mine]))
        for one in pair.arguments
        if one.mine in theirs
    )


def _parts(
    context: Context, one: tuple[Spot, TensorPair, Array], number: int, layer: str, call: int
) -> bool:
    spot, pair, mine = one
    theirs = _call(context.truth, layer, call, number)
    if theirs is None:
        return False
    refs = {ref.path: ref for ref in theirs.arguments}
    if spot.path not in refs:
        return False
    return relative(pair.as_mine(context.truth.tensor(refs[spot.path])), mine) > context.noise / 4


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
