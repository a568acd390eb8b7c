"""Compare what the program gave with the recorded run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from migrate.counts import many
from migrate.prove.compare.gates import LOSS_GATE, PARAMETER_GATE
from migrate.train.proof.arrays import Arrays, distance, norm, part
from migrate.train.results import DROPOUT, NOISE, TrainComparison

# A gradient's distance, relative to its own norm; and beside it relative to the norm of all: a gradient
# whose true value is zero is rounding.
GRADIENT_LIMIT, ROUNDING = 1e-5, 1e-6
RATE_LIMIT = 1e-6
# Weights that are read from a file.
START_LIMIT = 1e-7
# Of the way that the optimizer moves a weight, beside float32's rounding of the weight itself.
WAY_LIMIT, WEIGHT_ROUNDING = 1e-5, 2e-7
# How far elements whose gradient is rounding may shift statistics: "shift-first:…", "shift-last:…".
SHIFT = "shift"
# A cosine that has almost ended, optax's too, is a difference of numbers of the largest rate's size, and has
# their rounding in float32. Smaller rates are compared relative to the rate whose limit is this rounding.
_LEAST_RATE = 2.0**-23 / RATE_LIMIT
# A loss whose terms are this many times larger cancels: its rounding is that of the terms.
_CANCEL = 10
# Values that are no numbers make NaN, which counts as a difference: no warning.
_QUIET = np.errstate(invalid="ignore")


def compare(
    results: Arrays,
    expected: Arrays,
    updates: Sequence[Mapping[str, Any]],
    rates: Sequence[Sequence[float]],
    *,
    divides: bool,
    dropout: bool = False,
    noise: bool = False,
    size: float = 0.0,
    first: Collection[str] | None = None,
    moved: Mapping[str, Sequence[str]] = MappingProxyType({}),
    copies: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[TrainComparison]:
    """Compare start, gradients, their sum, the optimizer, losses, rates and weights, in this order.

    Args:
        results: arrays of `proof.child`.
        expected: the recorded gradients ("gradient:…") and weights ("first:…", "last:…") in Flax's layout.
        updates: the recorded updates.
        rates: learning rates of each group, in these updates and in those that were watched after them.
        divides: whether the optimizer divides each element's gradient by its size, as Adam does.
        dropout: whether the script's loss has dropout.
        noise: whether it draws other random numbers.
        size: size of the terms of the first loss: where they cancel, losses have the rounding of the terms.
        first: names of the weights that its program starts from; None: all of them.
        moved: statistics that statements outside of the updates move: name → these statements.
        copies: frozen weights that become trained ones, or move towards them: name → the trained one.
    """
    gradients = part(expected, "gradient")
    start = part(expected, "start")
    if start:
        yield _start(results, {n: x for n, x in start.items() if first is None or n in first})
    what = f"{len(gradients)} parameters, first micro-batch"
    yield _gradients("gradients", part(results, "gradient"), gradients, what)
    if any(key.startswith("sum:") for key in results):
        what = (
            many(len(updates[0]["micro"]), "micro-batch", "micro-batches") + " of the first update"
        )
        yield _gradients("sum of gradients", part(results, "sum"), part(expected, "sum"), what)
    if optimized := part(expected, "optimized"):
        yield _optimizer(results, start, optimized)
    for name in (DROPOUT,) * dropout + (NOISE,) * noise:
        yield _draws(results, name)
    yield _losses(results, updates, size)
    yield _rates(results, rates)
    # Adam divides the sum of the micro-batches, which may cancel where each of them is large.
    of_sum = [part(arrays, "sum") for arrays in (results, expected)]
    divided = of_sum if all(of_sum) else [part(results, "gradient"), gradients]
    steps = {"first": 1, "last": len(updates)}
    for which in ("first", "last") if len(updates) > 1 else ("first",):
        # The way that such an optimizer may move a weight in these updates.
        way = sum(max(update) for update in rates[: steps[which]]) if divides else None
        weights = _weights(results, expected, divided, which, steps[which], way, copies)
        if not weights.same and moved:
            rest = {key: x for key, x in expected.items() if key.partition(":")[2] not in moved}
            if _weights(results, rest, divided, which, steps[which], way, copies).same:
                statements = dict.fromkeys(text for texts in moved.values() for text in texts)
                cause = (
                    "only running statistics differ, which a statement outside of the updates moves: "
                    f"{'; '.join(statements)}"
                )
                weights = replace(weights, cause=cause)
        yield weights
    if average := part(expected, "average"):
        yield _average(results, average, len(updates))


@_QUIET
def _average(results: Arrays, theirs: Arrays, steps: int) -> TrainComparison:
    """Compare the moving average of the weights after the last update."""
    limit = PARAMETER_GATE * math.sqrt(steps)
    ours = part(results, "average")
    if not ours:
        cause = (
            "lost average: the script keeps a moving average of its weights, the program does not"
        )
        return TrainComparison("average", False, limit=limit, what="not there", cause=cause)
    frozen = {name for name in theirs if not np.any(theirs[name])}
    compared = {name: x for name, x in theirs.items() if name not in frozen}
    worst = _counted(distance(ours, compared) / (norm(compared) or 1.0))
    what = f"moving average of the weights after {many(steps, 'update')}"
    return TrainComparison("average", worst <= limit, worst, limit, what)


def _counted(difference: float) -> float:
    """The difference; infinity for NaN, which is neither larger nor smaller than a number."""
    return math.inf if math.isnan(difference) else difference


@_QUIET
def _gradients(
    compared: str, ours_by_path: Arrays, gradients: Arrays, of_what: str
) -> TrainComparison:
    whole = norm(gradients)
    worst, name = 0.0, ""
    same = True
    for path, theirs in gradients.items():
        ours = np.asarray(ours_by_path[path], np.float64)
        distance = float(np.linalg.norm(ours - theirs))
        size = float(np.linalg.norm(theirs))
        allowed = GRADIENT_LIMIT * size + ROUNDING * whole
        ratio = distance / size if size > ROUNDING * whole else distance / max(whole, 1e-30)
        ratio = _counted(ratio)
        if not distance <= allowed or math.isinf(distance):  # one infinite gradient allows all
            same = False
        if ratio > worst:
            worst, name = ratio, path
    what = f"{of_what}; largest: {name}" if name else of_what
    return TrainComparison(compared, same, worst, GRADIENT_LIMIT, what)


def weights_differ(ours: Any, theirs: Any, limit: float = START_LIMIT) -> bool:
    """Whether arrays differ by more than rounding; a missing one and another shape differ."""
    if ours is None or ours.shape != theirs.shape:
        return True
    size = float(np.linalg.norm(theirs))
    return not float(np.linalg.norm(ours - theirs)) <= limit * size


@_QUIET
def _start(results: Arrays, theirs: Arrays) -> TrainComparison:
    ours = part(results, "start")
    worst, at = 0.0, ""
    for name, value in theirs.items():
        ratio = math.inf
        if name in ours and ours[name].shape == value.shape:
            size = float(np.linalg.norm(value))
            ratio = _counted(float(np.linalg.norm(ours[name] - value)) / (size or 1.0))
        if ratio > worst:
            worst, at = ratio, f"; largest: {name}"
    what = f"weights that the script starts from{at}"
    return TrainComparison("start", worst <= START_LIMIT, worst, START_LIMIT, what)


@_QUIET
def _optimizer(results: Arrays, start: Arrays, theirs: Arrays) -> TrainComparison:
    ours = part(results, "optimized")
    worst, at = 0.0, ""
    for name in theirs:
        ratio = way_ratio(ours[name], theirs[name], start[name])
        if ratio > worst:
            worst, at = ratio, f"; largest: {name}"
    what = f"the optimizer alone, on the script's gradients{at}"
    return TrainComparison("optimizer", worst <= WAY_LIMIT, worst, WAY_LIMIT, what)


def way_ratio(ours: Any, theirs: Any, start: Any) -> float:
    """Distance of a weight, relative to the way that it went; its own rounding in float32 is left out."""
    distance = _counted(float(np.linalg.norm(np.asarray(ours, np.float64) - theirs)))
    distance = max(distance - WEIGHT_ROUNDING * float(np.linalg.norm(theirs)), 0.0)
    way = float(np.linalg.norm(np.asarray(theirs, np.float64) - start))
    return distance / way if way else (math.inf if distance else 0.0)


def _draws(results: Arrays, name: str) -> TrainComparison:
    """Keys must change the loss by these draws alone, and be others in each micro-batch."""
    losses, tried = (int(n) for n in results[name])
    calls, different = (int(n) for n in results["keys"])
    what = (
        f"{many(tried, 'key')} give {many(losses, 'loss', 'losses')}; "
        f"{many(different, 'key')} in {many(calls, 'call')}"
    )
    cause = ""
    if losses < 2:
        cause = f"lost {name}: the loss is the same with every key"
    elif calls != different:
        again = {
            DROPOUT: "dropout draws the same masks",
            NOISE: "the loss draws the same numbers",
        }[name]
        cause = f"{again} again: one key for several calls"
    return TrainComparison(name, not cause, what=what, cause=cause)


@_QUIET
def _losses(results: Arrays, updates: Sequence[Mapping[str, Any]], size: float) -> TrainComparison:
    first = abs(float(updates[0]["micro"][0]["loss"]))
    cancel = size > _CANCEL * first
    least = size if cancel else 1e-30
    worst, at, count = 0.0, "", 0
    for number, update in enumerate(updates):
        ours = results[f"losses:{number}"]
        theirs = np.array([micro["loss"] for micro in update["micro"]])
        count += len(theirs)
        ratios = np.abs(ours - theirs) / np.maximum(np.abs(theirs), least)
        difference = _counted(float(np.max(ratios)))
        if difference > worst:
            worst, at = difference, f"; largest: update {number}"
    of_terms = f"; relative to the size of its terms, {size:.3g}: they cancel" if cancel else ""
    return TrainComparison(
        "losses",
        worst <= LOSS_GATE,
        worst,
        LOSS_GATE,
        f"{many(count, 'micro-batch', 'micro-batches')}, {many(len(updates), 'update')}{at}{of_terms}",
    )


def _rates(results: Arrays, rates: Sequence[Sequence[float]]) -> TrainComparison:
    worst = 0.0
    least = _LEAST_RATE * max((abs(rate) for rate, *_ in rates), default=0.0)
    for number, (theirs, *_) in enumerate(rates):
        difference = abs(float(results[f"rate:{number}"]) - theirs)
        size = max(abs(theirs), least)
        worst = max(worst, _counted(difference / size if size else difference))
    return TrainComparison(
        "learning rates", worst <= RATE_LIMIT, worst, RATE_LIMIT, many(len(rates), "update")
    )


def rounding_elements(own: Any, gradient: Any, whole: float) -> Any:
    """Elements whose gradient is rounding, beside the norm of all gradients: an optimizer may divide it.

    Where both sides are exactly zero, decay alone moves the weight; one zero beside rounding is rounding.
    """
    limit = ROUNDING * whole
    beside = (own != 0) & (np.abs(own) <= limit)
    return (np.abs(gradient) <= limit) & ((gradient != 0) | beside)


def _gone(expected: Arrays, path: str, which: str) -> float:
    """Distance that a weight went at least until an update: it may end nearer to zero than that."""
    places = [f"{when}:{path}" for when in dict.fromkeys(("start", "first", which))]
    values = [np.asarray(expected[key], np.float64) for key in places if key in expected]
    return sum(float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(values))


def _spread(expected: Arrays, key: str) -> float:
    """Norm of the standard deviations beside running means, 0 for other weights.

    A mean is subtracted from what is then divided by them: one whose true value is zero is rounding.
    """
    above, _, name = key.rpartition("/")
    variance = expected.get(f"{above}/var") if name == "mean" else None
    return 0.0 if variance is None else math.sqrt(float(np.sum(variance, dtype=np.float64)))


@_QUIET
def _weights(
    results: Arrays,
    expected: Arrays,
    divided: Sequence[Arrays],
    which: str,
    steps: int,
    way: float | None,
    copies: Mapping[str, str],
) -> TrainComparison:
    """Compare weights.

    Adam divides noise by noise: elements whose gradient is rounding are left out. `divided` has the gradients
    of the first update, the program's and the script's. `way` is the sum of the
    recorded rates; None: the optimizer does not divide, and all elements count as they are. Statistics may
    differ by as much as such elements shift them, where the program gives that ("shift-…"). The gradient of a
    copy is that of its trained weight.
    """
    limit = PARAMETER_GATE * math.sqrt(steps)
    own, gradients = divided
    whole = norm(gradients)
    worst, name, left = 0.0, "", 0
    apart = np.zeros(3)  # squares of all: distance, norm, way
    for key, theirs in expected.items():
        if not key.startswith(f"{which}:"):
            continue
        path = key.partition(":")[2]
        ours = np.asarray(results[key], np.float64)
        difference = ours - theirs
        trained = copies.get(path, path).removeprefix("params/")
        gradient = gradients.get(trained)
        if gradient is not None and way is not None:
            ours_of_gradient = np.asarray(own[trained])
            noise = rounding_elements(ours_of_gradient, gradient, whole)
            left += int(noise.sum())
            difference = np.where(noise, 0.0, difference)
            # Adam divides a gradient by its size: a rounded gradient moves a weight by this much.
            rounded = np.abs(ours_of_gradient - gradient)
            moved = way * np.minimum(rounded / np.maximum(np.abs(gradient), 1e-30), 1.0)
            difference = np.maximum(np.abs(difference) - np.where(gradient, moved, 0.0), 0.0)
        if way is not None and (shift := results.get(f"{SHIFT}-{which}:{path}")) is not None:
            difference = np.maximum(np.abs(difference) - shift, 0.0)
        length, gone = float(np.linalg.norm(theirs)), _gone(expected, path, which)
        size = max(length, gone, _spread(expected, key))
        distance = float(np.linalg.norm(difference))
        apart += np.square((distance, length, gone))
        ratio = _counted(distance / size if size else distance)
        if ratio > worst:
            worst, name = ratio, path
    noise_text = f"; {left} elements whose gradient is rounding are left out" if left else ""
    what = f"after {many(steps, 'update')}{noise_text}; largest: {name}"
    result = TrainComparison("weights", worst <= limit, worst, limit, what)
    whole_distance, whole_norm, whole_way = np.sqrt(apart).tolist()
    if not whole_way:
        return result
    own_rounding = WEIGHT_ROUNDING * whole_norm
    return replace(result, apart=_counted(max(whole_distance - own_rounding, 0.0) / whole_way))
