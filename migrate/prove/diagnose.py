"""Find the first place where two runs part, and say what differs there in words that lead to the cause.

Within a step the most telling thing comes first: a missing gradient explains a norm, a norm explains
a parameter, a parameter explains the next loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from migrate.prove.compare import StepComparison, WeightComparison, relative
from migrate.prove.errors import RecordingError
from migrate.prove.gates import GRADIENT_GATE, Gates
from migrate.prove.records import RankRecord

_Ranks = Mapping[int, RankRecord]
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


@dataclass(frozen=True)
class Difference:
    """The first place where the two sides part.

    Attributes:
        kind: what differs.
        step: the optimizer step, from 1; for final weights the last one.
        rank: the rank, None if it concerns all.
        message: one line for the user.
        size: how far the sides are apart, relative to the original; None where that is no number.
    """

    kind: Kind
    step: int
    rank: int | None
    message: str
    size: float | None = None


def first_difference(
    original: _Ranks,
    ours: _Ranks,
    compared: Iterable[StepComparison],
    gates: Gates,
) -> Difference | None:
    """The first step at which the sides part, and the most telling thing that differs there.

    Nothing is looked at from the first step on whose noise is above the ceiling of the gates.
    """
    if found := _names(original, ours):
        return found
    by_step: dict[tuple[int, int], list[StepComparison]] = {}
    for step in compared:
        by_step.setdefault((step.optimizer, step.step), []).append(step)
    for place, ranks in by_step.items():
        if gates.blind(*place):
            return None
        for check in (_order, _gradient_count, _learning_rate, _ranks_apart):
            if found := check(ranks):
                return found
        if found := (
            _gradient_norm(ranks, gates)
            or _snapshots(original, ours, ranks, gates)
            or _loss(ranks, gates)
        ):
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


def _gradient_norm(ranks: list[StepComparison], gates: Gates) -> Difference | None:
    for step in ranks:
        gate = gates.gradient(step.optimizer, step.step)
        times, in_original = len(step.rewritten.clipped_from), len(step.original.clipped_from)
        if times != in_original:
            what = (
                f"clip_grad_norm_ was called {times} times before the step, in the original "
                f"{in_original}"
            )
            return _difference("gradient norm", step, what)
        if (step.gradient_difference or 0.0) <= gate:
            continue
        theirs, mine = step.original.gradient_norm, step.rewritten.gradient_norm
        before = ""
        if (relative(theirs, mine) or 0.0) <= gate:
            theirs, mine = step.original.clipped_from[0], step.rewritten.clipped_from[0]
            before = " before clipping"
        if theirs is None or mine is None:
            continue
        what = f"gradient norm{before} {mine:.6g}, in the original {theirs:.6g}"
        what += _gradient_reason(ranks, step, theirs, mine, gates)
        return _difference("gradient norm", step, what, step.gradient_difference)
    return None


def _gradient_reason(
    ranks: list[StepComparison], step: StepComparison, theirs: float, mine: float, gates: Gates
) -> str:
    gate = gates.gradient(step.optimizer, step.step)
    if same := _same_data(ranks):
        return same
    size = len(ranks)
    if size > 1 and (relative(theirs * size, mine) or 0.0) <= gate:
        return f": gradients are summed over the {size} ranks, not averaged"
    if size > 1 and (relative(theirs / size, mine) or 0.0) <= gate:
        return f": gradients are divided by the {size} ranks once more than in the original"
    equal_losses = (step.loss_difference or 0.0) <= gates.loss(step.optimizer, step.step)
    if step.step > 1 and equal_losses:
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


def _snapshots(
    original: _Ranks, ours: _Ranks, ranks: list[StepComparison], gates: Gates
) -> Difference | None:
    from migrate.prove import weights  # torch takes seconds to import

    for step in ranks:
        key = (step.optimizer, step.step)
        theirs, mine = original[step.rank].snapshots.get(key), ours[step.rank].snapshots.get(key)
        if theirs is None or mine is None:
            continue
        distances = weights.distances(theirs, mine)
        for walking in weights.noise(theirs, mine):
            distances.pop(walking, None)
        limits = {name: gates.parameter(name, *key) for name in distances}
        beyond = {name: far for name, far in distances.items() if far > limits[name]}
        name = max(beyond, key=beyond.__getitem__, default=None)
        if name is not None:
            return _difference(
                "parameters",
                step,
                f"{name} is {beyond[name]:.2g} away from the original's after the step (gate "
                f"{limits[name]:.2g}), with equal gradients: the optimizer updates it differently",
                beyond[name],
            )
    return None


def _loss(ranks: list[StepComparison], gates: Gates) -> Difference | None:
    for step in ranks:
        if (step.loss_difference or 0.0) <= gates.loss(step.optimizer, step.step):
            continue
        theirs, mine = step.original, step.rewritten
        if len(theirs.losses) != len(mine.losses):
            what = (
                f"{len(mine.losses)} backward passes before the step, in the original "
                f"{len(theirs.losses)}"
            )
        else:
            what = f"loss {mine.loss:.8g}, in the original {theirs.loss:.8g}{_same_data(ranks)}"
        return _difference("loss", step, what, step.loss_difference)
    return None


def final_weights(
    original: _Ranks, ours: _Ranks, gates: Gates
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
                limit = math.inf if name in walking else gates.final(name, last)
                gate = limit if math.isfinite(limit) else None
                farthest[name] = WeightComparison(name, rank, difference, name in walking, gate)
    compared = tuple(farthest.values())
    parameters = original[min(original)].header.parameters
    beyond = [weight for weight in compared if weight.gate and weight.difference > weight.gate]
    if not beyond:
        return compared, None
    # Parameters before buffers: they are what the training is for.
    worst = max(beyond, key=lambda weight: (weight.name in parameters, weight.difference))
    return compared, Difference(
        "parameters" if worst.name in parameters else "buffers",
        last,
        worst.rank,
        f"at the end, rank {worst.rank}: {worst.name} is {worst.difference:.2g} away from the "
        f"original's (gate {worst.gate:.2g})",
        worst.difference,
    )


def _difference(
    kind: Kind, step: StepComparison, what: str, size: float | None = None
) -> Difference:
    message = f"{_where(step)}, rank {step.rank}: {what}"
    return Difference(kind, step.step, step.rank, message, size)


def _where(step: StepComparison) -> str:
    return f"step {step.step}" + (f" of optimizer {step.optimizer}" if step.optimizer else "")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
