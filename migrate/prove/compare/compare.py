"""Compare what two runs recorded, step by step and rank by rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from migrate.prove.recording.records import RankRecord, StepRecord

_ROUNDING = 1e-6  # relative difference of two norms that float32 may explain
_Ranks = Mapping[int, RankRecord]


@dataclass(frozen=True)
class StepComparison:
    """Comparison of an optimizer step of a rank.

    Attributes:
        step: number among the steps of its optimizer, from 1.
        optimizer: number in the order of first use, from 0.
        rank: the global rank.
        original: record of the original.
        rewritten: record of the rewrite.
        loss_difference: relative to the original's loss, the largest of the step's backward passes; None if
            neither side has a loss; infinite if one side has more.
        gradient_difference: relative to the original's norm; None if no parameter has a gradient.
    """

    step: int
    optimizer: int
    rank: int
    original: StepRecord
    rewritten: StepRecord
    loss_difference: float | None
    gradient_difference: float | None

    @property
    def clipped(self) -> bool:
        """Whether either side clipped its gradients before the step."""
        return bool(self.original.clipped_from or self.rewritten.clipped_from)

    @property
    def norms(self) -> tuple[float | None, float | None]:
        """Gradient norms of original and rewrite that differ most.

        If all pairs differ by rounding alone, those before clipping: clipping makes the others equal.
        """
        pairs = _norms(self.original, self.rewritten)
        differences = [relative(*pair) or 0.0 for pair in pairs]
        largest = max(differences)
        return pairs[differences.index(largest) if largest > _ROUNDING else 0]

    @property
    def norm_difference(self) -> float | None:
        """Relative difference of `norms`."""
        return relative(*self.norms)

    @property
    def finite(self) -> bool:
        """Whether the losses and the gradient norm are finite, on one side at least."""
        return any(
            all(math.isfinite(value) for value in (*side.losses, side.gradient_norm or 0.0))
            for side in (self.original, self.rewritten)
        )


@dataclass(frozen=True)
class WeightComparison:
    """Comparison of a parameter or buffer, at the rank with the largest distance.

    Attributes:
        name: name in the state dict.
        rank: the rank of the largest distance.
        difference: relative L2 distance |rewritten - original| / |original|.
        noise: whether the parameter's gradients were only rounding noise, so that its values prove nothing
            and have no gate (`recording.weights.NOISE_SHARE`).
        gate: its gate; None if there is none: because of `noise`, because the original is too far from itself
            (`compare.gates.CEILING`), or because no element is left.
        left_out: number of elements that were not compared, because rounding moves them as far as the
            optimizer does (`recording.elements`), and number of all elements; zeros for none.
    """

    name: str
    rank: int
    difference: float
    noise: bool = False
    gate: float | None = None
    left_out: tuple[int, int] = (0, 0)

    @property
    def none_left(self) -> bool:
        """Whether no element was compared."""
        return bool(self.left_out[0]) and self.left_out[0] == self.left_out[1]


def relative(original: float | None, rewritten: float | None) -> float | None:
    """Relative difference |rewritten - original| / |original|; infinite if only one side is finite."""
    if original is None and rewritten is None:
        return None
    if original is None or rewritten is None:
        return math.inf
    if original == rewritten or (math.isnan(original) and math.isnan(rewritten)):
        return 0.0
    difference = abs(rewritten - original)
    return difference / abs(original) if original and math.isfinite(difference) else math.inf


def steps(original: _Ranks, ours: _Ranks) -> tuple[StepComparison, ...]:
    """Return every step that both sides have, in the order of steps, then by rank."""
    compared = []
    for index in range(max(len(record.steps) for record in original.values())):
        for rank, record in original.items():
            if index < min(len(record.steps), len(ours[rank].steps)):
                compared.append(_step(rank, record.steps[index], ours[rank].steps[index]))
    return tuple(compared)


def _step(rank: int, original: StepRecord, ours: StepRecord) -> StepComparison:
    norms = _norms(original, ours)
    return StepComparison(
        step=original.step,
        optimizer=original.optimizer,
        rank=rank,
        original=original,
        rewritten=ours,
        loss_difference=_worst(original.losses, ours.losses),
        gradient_difference=max(
            (value for pair in norms if (value := relative(*pair)) is not None), default=None
        ),
    )


def _norms(original: StepRecord, ours: StepRecord) -> list[tuple[float | None, float | None]]:
    """The pairs of gradient norms that are compared: before each clipping, then as the step used them."""
    # After clipping the norm is the same for any gradients: the norm before it shows more.
    before = zip(original.clipped_from, ours.clipped_from, strict=False)
    return [*before, (original.gradient_norm, ours.gradient_norm)]


def _worst(original: tuple[float, ...], ours: tuple[float, ...]) -> float | None:
    if len(original) != len(ours):
        return math.inf
    return max((relative(*pair) or 0.0 for pair in zip(original, ours, strict=True)), default=None)


def ranges(ranks: Iterable[int]) -> str:
    """Ranks in words: "0", or "0 to 3"."""
    first, *others = sorted(ranks)
    return f"{first} to {others[-1]}" if others else str(first)
