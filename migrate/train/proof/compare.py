"""Compare what the program gave with the recorded run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from migrate.counts import many
from migrate.prove.compare.gates import LOSS_GATE, PARAMETER_GATE
from migrate.train.results import TrainComparison

Arrays = Mapping[str, np.ndarray[Any, Any]]
# A gradient's distance, relative to its own norm; and beside it relative to the norm of all: a gradient
# whose true value is zero is rounding.
GRADIENT_LIMIT, ROUNDING = 1e-5, 1e-6
RATE_LIMIT = 1e-6
# A cosine that has almost ended, optax's too, is a difference of numbers of the largest rate's size, and has
# their rounding in float32. Smaller rates are compared relative to the rate whose limit is this rounding.
_LEAST_RATE = 2.0**-23 / RATE_LIMIT
# Values that are no numbers make NaN, which counts as a difference: no warning.
_QUIET = np.errstate(invalid="ignore")


def compare(
    results: Arrays,
    expected: Arrays,
    updates: Sequence[Mapping[str, Any]],
    rates: Sequence[Sequence[float]],
    *,
    divides: bool,
) -> Iterator[TrainComparison]:
    """Compare gradients, losses, learning rates and weights, in this order.

    Args:
        results: arrays of `proof.child`.
        expected: the recorded gradients ("gradient:…") and weights ("first:…", "last:…") in Flax's layout.
        updates: the recorded updates.
        rates: learning rates of each group, in these updates and in those that were watched after them.
        divides: whether the optimizer divides each element's gradient by its size, as Adam does.
    """
    gradients = {k.partition(":")[2]: v for k, v in expected.items() if k.startswith("gradient:")}
    yield _gradients(results, gradients)
    yield _losses(results, updates)
    yield _rates(results, rates)
    steps = {"first": 1, "last": len(updates)}
    for which in ("first", "last") if len(updates) > 1 else ("first",):
        # The way that such an optimizer may move a weight in these updates.
        way = sum(max(update) for update in rates[: steps[which]]) if divides else None
        yield _weights(results, expected, gradients, which, steps[which], way)


def _counted(difference: float) -> float:
    """The difference; infinity for NaN, which is neither larger nor smaller than a number."""
    return math.inf if math.isnan(difference) else difference


@_QUIET
def _gradients(results: Arrays, gradients: Arrays) -> TrainComparison:
    whole = math.sqrt(
        sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients.values())
    )
    worst, name = 0.0, ""
    same = True
    for path, theirs in gradients.items():
        ours = np.asarray(results[f"gradient:{path}"], np.float64)
        distance = float(np.linalg.norm(ours - theirs))
        size = float(np.linalg.norm(theirs))
        allowed = GRADIENT_LIMIT * size + ROUNDING * whole
        ratio = distance / size if size > ROUNDING * whole else distance / max(whole, 1e-30)
        ratio = _counted(ratio)
        if not distance <= allowed or math.isinf(distance):  # one infinite gradient allows all
            same = False
        if ratio > worst:
            worst, name = ratio, path
    what = f"{len(gradients)} parameters, first micro-batch; largest: {name}"
    return TrainComparison("gradients", same, worst, GRADIENT_LIMIT, what)


@_QUIET
def _losses(results: Arrays, updates: Sequence[Mapping[str, Any]]) -> TrainComparison:
    worst, at, count = 0.0, "", 0
    for number, update in enumerate(updates):
        ours = results[f"losses:{number}"]
        theirs = np.array([micro["loss"] for micro in update["micro"]])
        count += len(theirs)
        ratios = np.abs(ours - theirs) / np.maximum(np.abs(theirs), 1e-30)
        difference = _counted(float(np.max(ratios)))
        if difference > worst:
            worst, at = difference, f"; largest: update {number}"
    return TrainComparison(
        "losses",
        worst <= LOSS_GATE,
        worst,
        LOSS_GATE,
        f"{many(count, 'micro-batch', 'micro-batches')}, {many(len(updates), 'update')}{at}",
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


@_QUIET
def _weights(
    results: Arrays,
    expected: Arrays,
    gradients: Arrays,
    which: str,
    steps: int,
    way: float | None,
) -> TrainComparison:
    """Compare weights.

    Adam divides noise by noise: elements whose gradient is rounding are left out. `way` is the sum of the
    recorded rates; None: the optimizer does not divide, and all elements count as they are.
    """
    limit = PARAMETER_GATE * math.sqrt(steps)
    whole = math.sqrt(
        sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients.values())
    )
    worst, name, left = 0.0, "", 0
    for key, theirs in expected.items():
        if not key.startswith(f"{which}:"):
            continue
        path = key.partition(":")[2]
        ours = np.asarray(results[key], np.float64)
        difference = ours - theirs
        gradient = gradients.get(path.removeprefix("params/"))
        if gradient is not None and way is not None:
            noise = (np.abs(gradient) <= ROUNDING * whole) & (gradient != 0)
            left += int(noise.sum())
            difference = np.where(noise, 0.0, difference)
            # Adam divides a gradient by its size: a rounded gradient moves a weight by this much.
            rounded = np.abs(
                np.asarray(results[f"gradient:{path.removeprefix('params/')}"]) - gradient
            )
            moved = way * np.minimum(rounded / np.maximum(np.abs(gradient), 1e-30), 1.0)
            difference = np.maximum(np.abs(difference) - np.where(gradient, moved, 0.0), 0.0)
        size = float(np.linalg.norm(theirs))
        distance = float(np.linalg.norm(difference))
        ratio = _counted(distance / size if size else distance)
        if ratio > worst:
            worst, name = ratio, path
    noise_text = f"; {left} elements whose gradient is rounding are left out" if left else ""
    what = f"after {many(steps, 'update')}{noise_text}; largest: {name}"
    return TrainComparison("weights", worst <= limit, worst, limit, what)
