"""The noise floor of a script: how far its original is from itself when only the rounding differs.

Batch normalisation over a few examples, a loss that is the difference of nearly equal numbers, or many
steps at a high learning rate enlarge rounding beyond any fixed gate. How much is measured: the original
runs a second time with other rounding (`record.noise`).

Where matrices are multiplied in bfloat16 that order is mostly lost in the rounding of the results: the second
run of a perceptron was the same to the bit, and XLA, which rounds at other places, 5.6e-3 away. So the second
run then has autocast off, too: what bfloat16 does to the original is the yardstick.

A gradient norm is a sum over all parameters, and rounding moves its addends up and down. Measured in a
residual net, where a ReLU within rounding of zero took its other branch: the gradients were 2.0e-3 away in
the second run and 3.3e-3 on XLA, their norm 2.8e-7 and 6.1e-5, as in the one most of it cancelled. So the
noise of a norm is also taken from its addends, each parameter's, as if their signs were chance: 7.4e-5 and
1.6e-4 there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.prove.compare import compare
from migrate.prove.recording import meters
from migrate.prove.recording.records import RankRecord, StepRecord

if TYPE_CHECKING:
    import torch

_Ranks = Mapping[int, RankRecord]


@dataclass(frozen=True)
class StepFloor:
    """The noise of one optimizer step: the largest on any rank, up to and including this step.

    Attributes:
        optimizer: in the order of first use, from 0.
        step: of its optimizer, from 1.
        values: relative difference of the losses and gradient norms. They share one floor: of two values
            that both move by rounding, one may agree by chance.
        parameters: relative L2 distance of each parameter, by name, so far as snapshots were kept, without
            the elements that rounding can move as far as the optimizer (`recording.elements`).
        gradients: relative L2 distance of the gradient of each parameter.
        norms: relative difference of the gradient norms, were the differences of its addends of random signs.
    """

    step: int
    optimizer: int
    values: float
    parameters: Mapping[str, float] = field(default_factory=dict)
    gradients: Mapping[str, float] = field(default_factory=dict)
    norms: float = 0.0


@dataclass(frozen=True)
class NoiseFloor:
    """How far two runs of one script are apart that differ in the order of summation only.

    Attributes:
        steps: every step that both have, in order.
        final: relative L2 distance of each parameter and buffer at the end, and of each parameter in an
            earlier snapshot if that was larger, by name.
        printed: keys of the printed lines that they print differently (`recording.meters`).
        runs: how many runs were held against the first one.
    """

    steps: tuple[StepFloor, ...]
    final: Mapping[str, float]
    printed: frozenset[str] = frozenset()
    runs: int = 1

    @property
    def gradients(self) -> Mapping[str, float]:
        """How far the gradient of each parameter, of any optimizer, was at most moved."""
        found: dict[str, float] = {}
        for one in self.steps:
            found = _maxima(found, one.gradients)
        return found

    def at(self, optimizer: int, step: int) -> StepFloor:
        """The floor of a step; that of the last one before it, if the second run made fewer steps."""
        known = [one for one in self.steps if one.optimizer == optimizer and one.step <= step]
        return known[-1] if known else StepFloor(step, optimizer, 0.0)


def noise_floor(original: _Ranks, again: _Ranks) -> NoiseFloor:
    """Measure the distance of two runs of the original.

    Args:
        original: the ranks of the first run.
        again: of the second. What only one of the two has is not measured.
    """
    from migrate.prove.recording import elements  # torch takes seconds to import

    ranks = sorted(original.keys() & again.keys())
    theirs = {rank: original[rank] for rank in ranks}
    floors: dict[tuple[int, int], StepFloor] = {}
    values, norms, parameters, gradients = 0.0, 0.0, dict[str, float](), dict[str, float]()
    for one in compare.steps(theirs, again) if ranks else ():
        values = max(values, one.loss_difference or 0.0, one.gradient_difference or 0.0)
        norms = max(norms, _by_addends(one.original, one.rewritten))
        key = (one.optimizer, one.step)
        first, second = (side[one.rank].snapshots.get(key) for side in (original, again))
        kept, other = (side[one.rank].elements.get(key) for side in (original, again))
        if kept is not None and other is not None:
            gradients = _maxima(gradients, elements.roundings(kept, other))
        left_out = elements.moved(kept, gradients)
        parameters = _larger(parameters, first, second, left_out)
        floors[key] = StepFloor(one.step, one.optimizer, values, parameters, gradients, norms)
    final = parameters
    for rank in ranks:
        left_out = elements.moved(original[rank].final_elements, gradients)
        final = _larger(final, original[rank].final, again[rank].final, left_out)
    printed = [meters.noisy_keys(original[rank].printed, again[rank].printed) for rank in ranks]
    return NoiseFloor(tuple(floors.values()), final, frozenset[str]().union(*printed))


def _by_addends(first: StepRecord, second: StepRecord) -> float:
    """How far two gradient norms are apart where no difference of an addend makes up for another one's."""
    if not first.gradient_norm or len(first.norms) != len(second.norms):
        return 0.0
    apart = [other**2 - one**2 for one, other in zip(first.norms, second.norms, strict=True)]
    found = math.hypot(*apart) / (2 * first.gradient_norm**2)
    return found if math.isfinite(found) else 0.0


def larger(first: NoiseFloor | None, second: NoiseFloor) -> NoiseFloor:
    """The floor of two measurements: of each value the larger noise."""
    if first is None:
        return second
    steps = []
    for one in second.steps:
        other = first.at(one.optimizer, one.step)
        parameters = _maxima(other.parameters, one.parameters)
        gradients = _maxima(other.gradients, one.gradients)
        values, norms = max(one.values, other.values), max(one.norms, other.norms)
        steps.append(StepFloor(one.step, one.optimizer, values, parameters, gradients, norms))
    return NoiseFloor(
        tuple(steps),
        _maxima(first.final, second.final),
        first.printed | second.printed,
        first.runs + second.runs,
    )


def _maxima(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {
        name: max(first.get(name, 0.0), second.get(name, 0.0))
        for name in first.keys() | second.keys()
    }


def _larger(
    so_far: dict[str, float],
    first: Path | None,
    second: Path | None,
    left_out: Mapping[str, torch.Tensor],
) -> dict[str, float]:
    if first is None or second is None:
        return so_far
    from migrate.prove.recording import weights  # torch takes seconds to import

    walking = weights.noise(first, second)
    found = dict(so_far)
    for name, distance in weights.distances(first, second, left_out).items():
        if name not in walking:
            found[name] = max(found.get(name, 0.0), distance)
    return found
