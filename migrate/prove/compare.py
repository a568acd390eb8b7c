"""Compare what two runs recorded, and say what differs first, in words that lead to the cause.

The gates separate clean rewrites from faulty ones in float32: on real scripts the loss drifts by
about 1e-7 without growing, and parameters by up to 6e-7 over 50 steps, growing with the square root
of the steps; the smallest fault seen moved a loss by 6e-4 and a gradient norm by 1e-2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from migrate.prove.errors import RecordingError
from migrate.prove.records import RankRecord, StepRecord

# Relative to the original's value; measured drift 1e-7 to 4e-7.
LOSS_GATE = 1e-5
GRADIENT_GATE = 1e-5
# Relative L2 distance of a parameter, times the square root of the step; measured 1e-8 to 6e-7.
PARAMETER_GATE = 1e-5

Kind = Literal[
    "names",
    "gradient count",
    "learning rate",
    "ranks apart",
    "gradient norm",
    "parameters",
    "buffers",
    "loss",
    "order",
]
_Ranks = Mapping[int, RankRecord]


@dataclass(frozen=True)
class StepComparison:
    """One optimizer step of one rank on both sides.

    Attributes:
        step: of its optimizer, from 1.
        optimizer: in the order of first use, from 0.
        rank: the global rank.
        original: what the original recorded.
        rewritten: what the rewrite recorded.
        loss_difference: relative to the original's loss, the worst of the step's backward passes;
            None if neither side has one; infinite if one side has more.
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
    def finite(self) -> bool:
        """Whether the losses and the gradient norm are numbers, on one side at least."""
        return any(
            all(math.isfinite(value) for value in (*side.losses, side.gradient_norm or 0.0))
            for side in (self.original, self.rewritten)
        )


@dataclass(frozen=True)
class WeightComparison:
    """One parameter or buffer, at the rank where the two sides are farthest apart.

    Attributes:
        name: in the state dict.
        rank: the rank of the largest distance.
        difference: relative L2 distance |rewritten - original| / |original|.
        noise: the parameter's gradients were rounding noise only, so that its values say nothing
            and are held to no gate (`migrate.prove.weights.NOISE_SHARE`).
    """

    name: str
    rank: int
    difference: float
    noise: bool = False


@dataclass(frozen=True)
class Difference:
    """The first place where the two sides part.

    Attributes:
        kind: what differs.
        step: the optimizer step, from 1; for final weights the last one.
        rank: the rank, None if it concerns all.
        message: one line for the user.
    """

    kind: Kind
    step: int
    rank: int | None
    message: str


def relative(original: float | None, rewritten: float | None) -> float | None:
    """|rewritten - original| / |original|; infinite if only one side has a finite value."""
    if original is None and rewritten is None:
        return None
    if original is None or rewritten is None:
        return math.inf
    if original == rewritten or (math.isnan(original) and math.isnan(rewritten)):
        return 0.0
    difference = abs(rewritten - original)
    return difference / abs(original) if original and math.isfinite(difference) else math.inf


def steps(original: _Ranks, ours: _Ranks) -> tuple[StepComparison, ...]:
    """Every step that both sides have: in the order of steps, then by rank."""
    compared = []
    for index in range(max(len(record.steps) for record in original.values())):
        for rank, record in original.items():
            if index < min(len(record.steps), len(ours[rank].steps)):
                compared.append(_step(rank, record.steps[index], ours[rank].steps[index]))
    return tuple(compared)


def _step(rank: int, original: StepRecord, ours: StepRecord) -> StepComparison:
    norms = [(original.gradient_norm, ours.gradient_norm)]
    # After clipping the norm is the same whatever it was: the norm before it tells more.
    norms += zip(original.clipped_from, ours.clipped_from, strict=False)
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


def _worst(original: tuple[float, ...], ours: tuple[float, ...]) -> float | None:
    if len(original) != len(ours):
        return math.inf
    return max((relative(*pair) or 0.0 for pair in zip(original, ours, strict=True)), default=None)


def first_difference(
    original: _Ranks, ours: _Ranks, compared: Iterable[StepComparison]
) -> Difference | None:
    """The first step at which the sides part, and the most telling thing that differs there."""
    if found := _names(original, ours):
        return found
    by_step: dict[tuple[int, int], list[StepComparison]] = {}
    for step in compared:
        by_step.setdefault((step.optimizer, step.step), []).append(step)
    for ranks in by_step.values():
        for check in (_order, _gradient_count, _learning_rate, _ranks_apart, _gradient_norm):
            if found := check(ranks):
                return found
        if found := _snapshots(original, ours, ranks) or _loss(ranks):
            return found
    return None


def _names(original: _Ranks, ours: _Ranks) -> Difference | None:
    for rank, record in original.items():
        theirs, mine = record.header.parameters, ours[rank].header.parameters
        if theirs == mine:
            continue
        if more := sorted(mine.keys() - theirs.keys()):
            reason = (
                f"the rewrite has {len(more)} more parameters, {_listed(more)}: "
                "was a shared weight not tied again after the move to the XLA device?"
            )
        elif fewer := sorted(theirs.keys() - mine.keys()):
            reason = f"the rewrite lacks {len(fewer)} parameters, {_listed(fewer)}"
        else:
            name = next(name for name in theirs if theirs[name] != mine[name])
            reason = f"{name} has shape {mine[name]}, in the original {theirs[name]}"
        return Difference("names", 1, rank, f"step 1: {reason}")
    return None


def _order(ranks: list[StepComparison]) -> Difference | None:
    for step in ranks:
        theirs, mine = step.original, step.rewritten
        if (theirs.optimizer, theirs.step) != (mine.optimizer, mine.step):
            return _difference(
                "order",
                step,
                f"the original takes step {theirs.step} of optimizer {theirs.optimizer}, the "
                f"rewrite step {mine.step} of optimizer {mine.optimizer}",
            )
    return None


def _gradient_count(ranks: list[StepComparison]) -> Difference | None:
    for step in ranks:
        theirs, mine = step.original, step.rewritten
        if (theirs.with_gradient, theirs.parameters) == (mine.with_gradient, mine.parameters):
            continue
        what = f"{mine.with_gradient} of {mine.parameters} parameters have gradients"
        if not mine.with_gradient and not mine.in_modules:
            what += ": the optimizer was made before the model was moved to the XLA device"
        else:
            what += f", in the original {theirs.with_gradient} of {theirs.parameters}"
        return _difference("gradient count", step, what)
    return None


def _learning_rate(ranks: list[StepComparison]) -> Difference | None:
    for step in ranks:
        theirs, mine = step.original.learning_rates, step.rewritten.learning_rates
        if len(theirs) != len(mine):
            what = f"{len(mine)} parameter groups, in the original {len(theirs)}"
            return _difference("learning rate", step, what)
        for rate, ours in zip(theirs, mine, strict=True):
            if (relative(rate, ours) or 0.0) > GRADIENT_GATE:
                what = f"the learning rate is {ours:g}, in the original {rate:g}"
                return _difference("learning rate", step, what)
    return None


def _ranks_apart(ranks: list[StepComparison]) -> Difference | None:
    if len({step.original.checksum for step in ranks}) > 1:
        return None
    first, *others = ranks
    for step in others:
        if step.rewritten.checksum != first.rewritten.checksum:
            return Difference(
                "ranks apart",
                step.step,
                None,
                f"{_where(step)}: parameters differ between ranks {first.rank} and {step.rank}: "
                "gradients are not averaged (is DDP missing?)",
            )
    return None


def _gradient_norm(ranks: list[StepComparison]) -> Difference | None:
    for step in ranks:
        times, in_original = len(step.rewritten.clipped_from), len(step.original.clipped_from)
        if times != in_original:
            what = (
                f"clip_grad_norm_ was called {times} times before the step, in the original "
                f"{in_original}"
            )
            return _difference("gradient norm", step, what)
        if (step.gradient_difference or 0.0) <= GRADIENT_GATE:
            continue
        theirs, mine = step.original.gradient_norm, step.rewritten.gradient_norm
        before = ""
        if (relative(theirs, mine) or 0.0) <= GRADIENT_GATE:
            theirs, mine = step.original.clipped_from[0], step.rewritten.clipped_from[0]
            before = " before clipping"
        if theirs is None or mine is None:
            continue
        what = f"gradient norm{before} {mine:.6g}, in the original {theirs:.6g}"
        return _difference(
            "gradient norm", step, what + _gradient_reason(ranks, step, theirs, mine)
        )
    return None


def _gradient_reason(
    ranks: list[StepComparison], step: StepComparison, theirs: float, mine: float
) -> str:
    if same := _same_data(ranks):
        return same
    size = len(ranks)
    if size > 1 and (relative(theirs * size, mine) or 0.0) <= GRADIENT_GATE:
        return f": gradients are summed over the {size} ranks, not averaged"
    if size > 1 and (relative(theirs / size, mine) or 0.0) <= GRADIENT_GATE:
        return f": gradients are divided by the {size} ranks once more than in the original"
    if step.step > 1 and (step.loss_difference or 0.0) <= LOSS_GATE:
        return ", with equal losses: gradients of earlier steps are still there (is zero_grad missing?)"
    return ""


def _same_data(ranks: list[StepComparison]) -> str:
    if (
        len(ranks) > 1
        and ranks[0].rewritten.losses
        and len({step.rewritten.losses for step in ranks}) == 1
        and len({step.original.losses for step in ranks}) > 1
    ):
        return (
            f": all {len(ranks)} ranks have the same loss, so they train on the same data (does "
            "the sampler get num_replicas and rank?)"
        )
    return ""


def _snapshots(original: _Ranks, ours: _Ranks, ranks: list[StepComparison]) -> Difference | None:
    from migrate.prove import weights  # torch takes seconds to import

    for step in ranks:
        key = (step.optimizer, step.step)
        theirs, mine = original[step.rank].snapshots.get(key), ours[step.rank].snapshots.get(key)
        if theirs is None or mine is None:
            continue
        distances = weights.distances(theirs, mine)
        for walking in weights.noise(theirs, mine):
            distances.pop(walking, None)
        gate = PARAMETER_GATE * math.sqrt(step.step)
        name = max(distances, key=distances.__getitem__, default=None)
        if name is not None and distances[name] > gate:
            return _difference(
                "parameters",
                step,
                f"{name} is {distances[name]:.2g} away from the original's after the step (gate "
                f"{gate:.2g}), with equal gradients: the optimizer updates it differently",
            )
    return None


def _loss(ranks: list[StepComparison]) -> Difference | None:
    for step in ranks:
        if (step.loss_difference or 0.0) <= LOSS_GATE:
            continue
        theirs, mine = step.original, step.rewritten
        if len(theirs.losses) != len(mine.losses):
            what = (
                f"{len(mine.losses)} backward passes before the step, in the original "
                f"{len(theirs.losses)}"
            )
        else:
            what = f"loss {mine.loss:.8g}, in the original {theirs.loss:.8g}{_same_data(ranks)}"
        return _difference("loss", step, what)
    return None


def final_weights(
    original: _Ranks, ours: _Ranks
) -> tuple[tuple[WeightComparison, ...], Difference | None]:
    """The final parameters and buffers of all ranks, and the farthest beyond the gate, if any is.

    Raises:
        RecordingError: a rank left no final weights.
    """
    from migrate.prove import weights  # torch takes seconds to import

    farthest: dict[str, WeightComparison] = {}
    last = max(step.step for record in original.values() for step in record.steps)
    for rank, record in original.items():
        theirs, mine = record.final, ours[rank].final
        if theirs is None or mine is None:
            side = "original" if theirs is None else "rewrite"
            raise RecordingError(
                f"rank {rank} of the {side} left no final weights",
                "let every process end by returning, not by os._exit or a signal",
            )
        walking = weights.noise(theirs, mine)
        for name, difference in weights.distances(theirs, mine).items():
            if name not in farthest or difference > farthest[name].difference:
                farthest[name] = WeightComparison(name, rank, difference, name in walking)
    compared = tuple(farthest.values())
    parameters = original[min(original)].header.parameters
    gate = PARAMETER_GATE * math.sqrt(last)
    beyond = [weight for weight in compared if not weight.noise and weight.difference > gate]
    if not beyond:
        return compared, None
    # Parameters before buffers: they are what the training is for.
    worst = max(beyond, key=lambda weight: (weight.name in parameters, weight.difference))
    return compared, Difference(
        "parameters" if worst.name in parameters else "buffers",
        last,
        worst.rank,
        f"at the end, rank {worst.rank}: {worst.name} is {worst.difference:.2g} away from the "
        f"original's (gate {gate:.2g}){_buffer_reason(worst.name, parameters)}",
    )


def _buffer_reason(name: str, parameters: Mapping[str, object]) -> str:
    if name in parameters or not name.endswith("running_var"):
        return ""
    # torch_xla 2.9: BatchNorm1d on 6 rows moves it by 5/6 of what torch does.
    return (
        ", while all losses and parameters agree: torch_xla's batch normalisation averages the "
        "biased variance (divided by n), torch the unbiased one (by n - 1)"
    )


def ranges(ranks: Iterable[int]) -> str:
    """Ranks in words: "0", or "0 to 3"."""
    first, *others = sorted(ranks)
    return f"{first} to {others[-1]}" if others else str(first)


def _difference(kind: Kind, step: StepComparison, what: str) -> Difference:
    return Difference(kind, step.step, step.rank, f"{_where(step)}, rank {step.rank}: {what}")


def _where(step: StepComparison) -> str:
    return f"step {step.step}" + (f" of optimizer {step.optimizer}" if step.optimizer else "")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
