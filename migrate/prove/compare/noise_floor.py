"""Noise floor of a script: distance of its original from itself when only the rounding differs.

Some scripts enlarge rounding beyond any fixed gate: batch normalization over a few examples, a loss that is
the difference of nearly equal numbers, or many steps at a high learning rate. The enlargement is measured:
the original runs a second time with other rounding (`record.noise`).

Where matrices are multiplied in bfloat16, another order of summation is mostly lost in the rounding of the
results. The second run of a perceptron was the same to the bit, and XLA, which rounds elsewhere, was 5.6e-3
away. So the second run then has autocast off, too: the effect of bfloat16 on the original is the yardstick.

A gradient norm is a sum over all parameters, and rounding moves its addends up and down. It was measured in
a residual net, where a ReLU within rounding of zero took its other branch. The gradients were 2.0e-3 away in
the second run and 3.3e-3 on XLA; their norms were 2.8e-7 and 6.1e-5 away, because in the second run most of
it canceled. So the noise of a norm is also derived from its addends, one for each parameter, as if their
signs were random: 7.4e-5 and 1.6e-4 there.
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
    """Noise of an optimizer step: the largest on any rank, up to and including this step.

    Attributes:
        optimizer: number in the order of first use, from 0.
        step: number among the steps of its optimizer, from 1.
        values: relative difference of the losses and gradient norms. They share one floor: of two values
            that both move by rounding, one may agree by chance.
        parameters: relative L2 distance of each parameter, by name, so far as snapshots were kept, without
            the elements that rounding can move as far as the optimizer (`recording.elements`).
        gradients: relative L2 distance of the gradient of each parameter.
        norms: relative difference of the gradient norms, if the differences of its addends had random signs.
    """

    step: int
    optimizer: int
    values: float
    parameters: Mapping[str, float] = field(default_factory=dict)
    gradients: Mapping[str, float] = field(default_factory=dict)
    norms: float = 0.0


@dataclass(frozen=True)
class NoiseFloor:
    """Distance of two runs of a script that differ in the order of summation only.

    Attributes:
        steps: every step that both have, in order.
        final: relative L2 distance of each parameter and buffer at the end, and of each parameter in an
            earlier snapshot if that was larger, by name.
        printed: keys of the printed lines that differ (`recording.meters`).
        runs: number of runs that were compared with the first.
    """

    steps: tuple[StepFloor, ...]
    final: Mapping[str, float]
    printed: frozenset[str] = frozenset()
    runs: int = 1

    @property
    def gradients(self) -> Mapping[str, float]:
        """Largest movement of each parameter's gradient, for any optimizer."""
        largest: dict[str, float] = {}
        for step_floor in self.steps:
            largest = _maxima(largest, step_floor.gradients)
        return largest

    def at(self, optimizer: int, step: int) -> StepFloor:
        """Floor of a step; if the second run made fewer steps, the floor of its last step before."""
        known = [
            step_floor
            for step_floor in self.steps
            if step_floor.optimizer == optimizer and step_floor.step <= step
        ]
        return known[-1] if known else StepFloor(step, optimizer, 0.0)


def noise_floor(original: _Ranks, again: _Ranks) -> NoiseFloor:
    """Measure the distance of two runs of the original.

    Args:
        original: the ranks of the first run.
        again: the ranks of the second run. Steps of only one run are not measured.
    """
    from migrate.prove.recording import elements  # torch takes seconds to import

    ranks = sorted(original.keys() & again.keys())
    theirs = {rank: original[rank] for rank in ranks}
    floors: dict[tuple[int, int], StepFloor] = {}
    values, norms, parameters, gradients = 0.0, 0.0, dict[str, float](), dict[str, float]()
    for step in compare.steps(theirs, again) if ranks else ():
        values = max(values, step.loss_difference or 0.0, step.gradient_difference or 0.0)
        norms = max(norms, _by_addends(step.original, step.rewritten))
        key = (step.optimizer, step.step)
        first, second = (side[step.rank].snapshots.get(key) for side in (original, again))
        kept, other = (side[step.rank].elements.get(key) for side in (original, again))
        if kept is not None and other is not None:
            gradients = _maxima(gradients, elements.roundings(kept, other))
        left_out = elements.moved(kept, gradients)
        parameters = _larger(parameters, first, second, left_out)
        floors[key] = StepFloor(step.step, step.optimizer, values, parameters, gradients, norms)
    final = parameters
    for rank in ranks:
        left_out = elements.moved(original[rank].final_elements, gradients)
        final = _larger(final, original[rank].final, again[rank].final, left_out)
    printed = [meters.noisy_keys(original[rank].printed, again[rank].printed) for rank in ranks]
    return NoiseFloor(tuple(floors.values()), final, frozenset[str]().union(*printed))


def _by_addends(first: StepRecord, second: StepRecord) -> float:
    """Distance of two gradient norms if no differences of addends cancel."""
    if not first.gradient_norm or len(first.norms) != len(second.norms):
        return 0.0
    apart = [other**2 - norm**2 for norm, other in zip(first.norms, second.norms, strict=True)]
    distance = math.hypot(*apart) / (2 * first.gradient_norm**2)
    return distance if math.isfinite(distance) else 0.0


def larger(first: NoiseFloor | None, second: NoiseFloor) -> NoiseFloor:
    """Combine the floors of two measurements: the larger noise of each value."""
    if first is None:
        return second
    steps = []
    for step_floor in second.steps:
        other = first.at(step_floor.optimizer, step_floor.step)
        parameters = _maxima(other.parameters, step_floor.parameters)
        gradients = _maxima(other.gradients, step_floor.gradients)
        values, norms = max(step_floor.values, other.values), max(step_floor.norms, other.norms)
        steps.append(
            StepFloor(step_floor.step, step_floor.optimizer, values, parameters, gradients, norms)
        )
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
    distances = dict(so_far)
    for name, distance in weights.distances(first, second, left_out).items():
        if name not in walking:
            distances[name] = max(distances.get(name, 0.0), distance)
    return distances
