"""Judge what two runs recorded: the same training, another one, or nothing that says either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from migrate.prove import compare, diagnose
from migrate.prove.compare import StepComparison, WeightComparison
from migrate.prove.diagnose import Difference
from migrate.prove.records import RankRecord

_Ranks = Mapping[int, RankRecord]


class Verdict(StrEnum):
    """What a proof found. Only EQUAL says that both sides compute the same."""

    EQUAL = "equal"
    DIFFERS = "differs"
    VACUOUS = "vacuous"
    NOT_FINITE = "not finite"
    NO_STEPS = "no steps"
    STEP_COUNT = "step count differs"
    RANK_COUNT = "rank count differs"


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on; the fields are those of `migrate.prove.proof.Proof`."""

    verdict: Verdict
    message: str
    difference: Difference | None
    steps: tuple[StepComparison, ...]
    weights: tuple[WeightComparison, ...]


def judge(original: _Ranks, ours: _Ranks) -> Judgement:
    """Compare the recorded ranks of the original and of the rewrite.

    Raises:
        RecordingError: a rank left no final weights.
    """
    if not original or not ours:
        sides = [name for name, ranks in (("original", original), ("rewrite", ours)) if not ranks]
        message = (
            f"no optimizer step was recorded in the {' nor in the '.join(sides)}: "
            "nothing was compared"
        )
        return Judgement(Verdict.NO_STEPS, message, None, (), ())
    if original.keys() != ours.keys():
        message = (
            f"the original trained on ranks {compare.ranges(original)}, "
            f"the rewrite on ranks {compare.ranges(ours)}"
        )
        return Judgement(Verdict.RANK_COUNT, message, None, (), ())
    steps = compare.steps(original, ours)
    difference = diagnose.first_difference(original, ours, steps)
    not_finite = next((step for step in steps if not step.finite), None)
    if not_finite and (difference is None or difference.step > not_finite.step):
        message = (
            f"step {not_finite.step}, rank {not_finite.rank}: loss {not_finite.original.loss} and "
            f"gradient norm {not_finite.original.gradient_norm} in the original, and not finite in the "
            "rewrite either: nothing after a NaN or an infinity can be compared"
        )
        return Judgement(Verdict.NOT_FINITE, message, None, steps, ())
    if difference is not None:
        return Judgement(Verdict.DIFFERS, difference.message, difference, steps, ())
    for rank, record in original.items():
        if len(record.steps) != len(ours[rank].steps):
            message = (
                f"the original made {len(record.steps)} steps on rank {rank}, the rewrite "
                f"{len(ours[rank].steps)}; the steps of both agree (drop_last=True leaves out the "
                "last short batch of each epoch)"
            )
            return Judgement(Verdict.STEP_COUNT, message, None, steps, ())
    weights, difference = diagnose.final_weights(original, ours)
    if difference is not None:
        return Judgement(Verdict.DIFFERS, difference.message, difference, steps, weights)
    if all(not step.original.gradient_norm for step in steps):
        message = (
            "every gradient is zero on both sides, so the losses and weights say nothing about the "
            "rewrite (a loss that is constant, such as cross_entropy over one class?)"
        )
        return Judgement(Verdict.VACUOUS, message, None, steps, weights)
    compared = sum(not weight.noise for weight in weights)
    message = f"{len(steps)} steps on {len(original)} ranks and {compared} final weights agree"
    return Judgement(Verdict.EQUAL, message, None, steps, weights)


def notes(
    original: _Ranks, ours: _Ranks, replicas: int, weights: Sequence[WeightComparison] = ()
) -> tuple[str, ...]:
    """What may explain a difference, or limits what the verdict says."""
    found = []
    if walking := [weight.name for weight in weights if weight.noise]:
        found.append(
            f"{', '.join(walking)}: gradients are zero but for rounding (a bias before a "
            "normalisation?), so the values walk at random on any device and were not compared"
        )
    if any(weight.name.endswith("running_var") for weight in weights):
        found.append(
            "running variances of batch normalisation are compared as torch_xla keeps them: it averages the "
            "biased variance (divided by n), torch the unbiased one (by n - 1)"
        )
    if original.keys() == ours.keys() and original and len(original) != replicas:
        found.append(
            f"the script trained on {len(original)} ranks of its own choice, not on {replicas}"
        )
    every = [step for ranks in (original, ours) for rank in ranks.values() for step in rank.steps]
    dropout = max((step.dropout for step in every), default=0.0)
    if dropout:
        found.append(
            f"dropout with p={dropout:g} was active: the two sides draw different masks, so their "
            "losses differ; set it to 0 for a proof, or give --no-dropout"
        )
    if every and not any(step.losses for step in every):
        found.append("no backward pass was seen (torch.autograd.grad is not): no loss was compared")
    return tuple(found)
