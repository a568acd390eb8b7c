"""Verdict on the recordings of two runs: the same training, another training, or no evidence for
either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from safetensors import safe_open

from migrate.counts import many
from migrate.observe.boundaries import MOST_STEPS
from migrate.prove.compare import compare, diagnose
from migrate.prove.compare.compare import StepComparison, WeightComparison
from migrate.prove.compare.difference import Difference
from migrate.prove.compare.gates import (
    AMP_OFF,
    CEILING,
    KEEP_FLOAT32,
    MARGIN,
    MORE_NOISE_RUNS,
    NOISE_RUNS,
    PARAMETER_GATE,
    SMALL,
    Gates,
    judged_noise,
)
from migrate.prove.compare.noise_floor import NoiseFloor, larger, noise_floor
from migrate.prove.recording.records import RankRecord, StepRecord
from migrate.quick_xla import AS_WRITTEN

_Ranks = Mapping[int, RankRecord]


class ProofVerdict(StrEnum):
    """Verdict of a proof. Only MATCH means that both sides compute the same."""

    MATCH = "match"
    DIFFERS = "differs"
    VACUOUS = "vacuous"
    NOT_FINITE = "not finite"
    NOISE = "noise"
    NO_STEPS = "no steps"
    STEP_COUNT = "step count differs"
    RANK_COUNT = "rank count differs"
    CANNOT_RESUME = "cannot resume"
    UNENDED = "steps do not end"
    PARTED = "replicas diverge"


@dataclass(frozen=True)
class Judgement:
    """Verdict with its evidence; the fields are those of `migrate.prove.proof.Proof`."""

    verdict: ProofVerdict
    message: str
    difference: Difference | None
    steps: tuple[StepComparison, ...]
    weights: tuple[WeightComparison, ...]
    floor: NoiseFloor | None = None
    partial: bool = False


def judge_with_floor(
    original: _Ranks,
    ours: _Ranks,
    again: Callable[[], _Ranks | None],
    bfloat16: bool = False,
    as_written: Callable[[], _Ranks | None] | None = None,
) -> Judgement:
    """Judge as `judge`; if the difference is small, measure the original's distance from itself and judge
    again.

    Args:
        original: the ranks of the original.
        ours: the ranks of the rewrite.
        again: runs the original once more with other rounding, and where `bfloat16` is set without
            autocast. It is called, up to `compare.gates.NOISE_RUNS` times, only as long as the sides differ
            in a number, by less than `compare.gates.CEILING`, or in what they print; once where gradients in
            bfloat16 differ by more; `compare.gates.MORE_NOISE_RUNS` times more as long as the difference is
            below `compare.gates.SMALL`. If it returns None, that run failed, and the gates stay as they are.
        bfloat16: whether both sides multiplied in bfloat16: see `compare.gates`.
        as_written: runs the rewrite once more, rounding to 16 bits as written: see `judge_with_floors`.
    """

    def measured() -> Iterator[NoiseFloor]:
        for _ in range(NOISE_RUNS + MORE_NOISE_RUNS):
            if (second := again()) is None:
                return
            yield noise_floor(original, second)

    return judge_with_floors(original, ours, measured(), bfloat16, as_written)


def judge_with_floors(
    original: _Ranks,
    ours: _Ranks,
    floors: Iterable[NoiseFloor],
    bfloat16: bool = False,
    as_written: Callable[[], _Ranks | None] | None = None,
) -> Judgement:
    """Judge as `judge_with_floor`, with measurements of the original's noise, taken one by one while in
    doubt.

    Within a fusion XLA does not round to bfloat16. No run of the original shows how far that moves a
    training, so a rewrite still in doubt runs once more without it, and has to agree within the same gates.

    Args:
        original: the ranks of the original.
        ours: the ranks of the rewrite.
        floors: measurements of the original's noise.
        bfloat16: whether both sides multiplied in bfloat16: see `compare.gates`.
        as_written: runs the rewrite once more, rounding to 16 bits as written; None: it computes nothing in
            16 bits. If it returns None, that run failed.
    """
    judgement = judge(original, ours, bfloat16=bfloat16)
    floor: NoiseFloor | None = None
    waiting = iter(floors)
    # XLA:CPU adds the gradients of a bias in bfloat16, and may lose most of them (`record.noise.rounding`).
    # One measurement tells, at any distance.
    doubtful = _in_doubt(judgement) or (bfloat16 and _is_of_gradients(judgement))
    while doubtful and (floor is None or floor.runs < NOISE_RUNS or _is_small(judgement)):
        if (measured := next(waiting, None)) is None:
            break
        floor = larger(floor, measured)
        judgement = judge(original, ours, floor, bfloat16)
        doubtful = _in_doubt(judgement)
    if as_written is None or not doubtful or (exact := as_written()) is None:
        return judgement
    exactly = judge(original, exact, floor, bfloat16)
    if exactly.verdict in (ProofVerdict.MATCH, ProofVerdict.STEP_COUNT):
        wider = f"{_EXCESS} ({_figures(noise_floor(ours, exact))})"
        return replace(exactly, message=f"{exactly.message}; {wider}")
    if exactly.verdict is ProofVerdict.DIFFERS:
        return replace(exactly, message=exactly.message + _ROUNDED_AS_WRITTEN)
    return judgement


# Ends of a verdict for which the rewrite was compiled once more.
_ROUNDED_AS_WRITTEN = f"; with XLA_FLAGS={AS_WRITTEN}, so no excess precision of XLA explains it"
_EXCESS = (
    f"both round to 16 bits as written (XLA_FLAGS={AS_WRITTEN}). By default XLA keeps the wider values of a "
    "fusion, which moves the rewrite by that excess precision alone"
)


def _is_of_gradients(judgement: Judgement) -> bool:
    return judgement.difference is not None and judgement.difference.kind == "gradient norm"


def _is_small(judgement: Judgement) -> bool:
    """Whether the sides differ by so little that a few samples of the noise may not show it."""
    difference = judgement.difference
    return difference is not None and difference.size is not None and difference.size < SMALL


def _in_doubt(judgement: Judgement) -> bool:
    """Whether rounding alone may explain the divergence of the two sides."""
    difference = judgement.difference
    if difference is None:
        return False
    by_little = difference.size is not None and difference.size < CEILING
    # With equal gradients it may be rounding of a few elements (`recording.elements`), at any distance. A
    # bias before a normalization walks at random by Adam's steps, and takes the running mean with it.
    return by_little or difference.kind in ("printed", "parameters", "buffers")


def judge(
    original: _Ranks, ours: _Ranks, floor: NoiseFloor | None = None, bfloat16: bool = False
) -> Judgement:
    """Compare the recorded ranks of the original and of the rewrite.

    Args:
        original: the ranks of the original.
        ours: those of the rewrite.
        floor: noise floor of the original, which widens the gates; None: fixed gates.
        bfloat16: whether both sides multiplied in bfloat16: see `compare.gates`.

    Raises:
        RecordingError: a rank left no final weights.
    """
    if not original or not ours:
        sides = [name for name, ranks in (("original", original), ("rewrite", ours)) if not ranks]
        message = (
            f"no optimizer step was recorded in the {' nor in the '.join(sides)}: "
            "nothing was compared. Give the script that trains, and arguments with which it trains"
        )
        return Judgement(ProofVerdict.NO_STEPS, message, None, (), ())
    if original.keys() != ours.keys():
        message = (
            f"the original trained on ranks {compare.ranges(original)}, "
            f"the rewrite on ranks {compare.ranges(ours)}"
        )
        return Judgement(ProofVerdict.RANK_COUNT, message, None, (), ())
    how = remedy(original) if bfloat16 else AMP_OFF
    gates = Gates(floor, bfloat16, _first_moves(original, ours), how)
    judgement = replace(_judge_steps(original, ours, gates), floor=floor)
    judgement = _with_first_moves(judgement, original, ours, gates)
    if judgement.verdict is ProofVerdict.MATCH and (untrained := _untrained(original)):
        judgement = replace(judgement, verdict=ProofVerdict.VACUOUS, message=untrained)
    unended = _unended(ours)
    if unended is None or judgement.verdict is ProofVerdict.DIFFERS:
        return judgement
    return replace(judgement, verdict=ProofVerdict.UNENDED, message=unended)


def remedy(original: _Ranks) -> str:
    """Return how to compare in float32 what the original computes in bfloat16."""
    files = [record.final for record in original.values() if record.final is not None]
    return KEEP_FLOAT32 if any(map(_in_16_bits, files)) else AMP_OFF


def _in_16_bits(path: Path) -> bool:
    """Whether a tensor of the file is of 16 bits itself: no autocast made it so."""
    with safe_open(path, framework="numpy") as file:
        names = file.keys()
        return any(file.get_slice(name).get_dtype() in ("BF16", "F16") for name in names)


def _with_first_moves(
    judgement: Judgement, original: _Ranks, ours: _Ranks, gates: Gates
) -> Judgement:
    """Add to a verdict of equality whether it depends on the effect of rounding on Adam's first step."""
    agree = judgement.verdict in (ProofVerdict.MATCH, ProofVerdict.STEP_COUNT)
    if not agree or MARGIN * max(gates.moves.values(), default=0.0) <= PARAMETER_GATE:
        return judgement
    without = _judge_steps(original, ours, replace(gates, moves={}))
    if without.verdict is judgement.verdict:
        return judgement
    by = f"within {MARGIN:g} times the rounding noise of Adam's first step"
    return replace(judgement, message=f"{judgement.message}; of the parameters, {by}")


def _untrained(original: _Ranks) -> str:
    """Message for an optimizer whose parameters never get a gradient, on either side."""
    steps = [step for record in original.values() for step in record.steps]
    for optimizer in sorted({step.optimizer for step in steps}):
        own = [step for step in steps if step.optimizer == optimizer]
        if own[0].parameters and not any(step.with_gradient for step in own):
            line = own[0].details.lines.get("step")
            where = f" at {line}" if line else ""
            return (
                f"the optimizer that steps{where} trains nothing, in the original and in the rewrite: no "
                f"gradient reaches any of its {own[0].parameters} parameters"
            )
    return ""


def _unended(ours: _Ranks) -> str | None:
    """Message for a rewrite whose steps no sync ends; simulated, its results may still agree."""
    steps = [step for record in ours.values() for step in record.steps]
    most = max((step.in_graph for step in steps), default=0)
    if most <= MOST_STEPS:
        return None
    places = (step.details.lines.get("step") for step in steps)
    line = next((place for place in places if place), "the optimizer's step")
    return (
        f"the training steps of the rewrite have no step boundary ({line}): {most} steps are in one "
        "graph, which grows until the memory or the compiler of a TPU gives up; put the body of the loop in "
        "`with torch_xla.step():`"
    )


def _first_moves(*sides: _Ranks) -> dict[str, float]:
    largest: dict[str, float] = {}
    for ranks in sides:
        for record in ranks.values():
            for step in record.steps:
                for name, move in step.moves.items():
                    largest[name] = max(largest.get(name, 0.0), move)
    return largest


def _judge_steps(original: _Ranks, ours: _Ranks, gates: Gates) -> Judgement:
    steps = compare.steps(original, ours)
    difference = diagnose.first_difference(original, ours, steps, gates)
    not_finite = next((step for step in steps if not step.finite), None)
    if not_finite and (difference is None or difference.step > not_finite.step):
        message = (
            f"step {not_finite.step}, rank {not_finite.rank}: loss {not_finite.original.loss} and "
            f"gradient norm {not_finite.original.gradient_norm} in the original, and not finite in the "
            "rewrite either: nothing after a NaN or an infinity can be compared"
        )
        return Judgement(ProofVerdict.NOT_FINITE, message, None, steps, ())
    if difference is not None:
        message = difference.message + _beyond_noise(difference, gates)
        return Judgement(ProofVerdict.DIFFERS, message, difference, steps, ())
    blind = [index for index, step in enumerate(steps) if gates.blind(step.optimizer, step.step)]
    if blind and not blind[0]:
        return Judgement(ProofVerdict.NOISE, _drowned(steps[0], gates), None, steps, ())
    unjudged = f"; {_drowned(steps[blind[0]], gates)}" if blind else ""
    for rank, record in original.items():
        if len(record.steps) != len(ours[rank].steps):
            agree = f"{_how_many(steps, blind[0])} agree" if blind else "the steps of both agree"
            message = (
                f"the original made {len(record.steps)} steps on rank {rank}, the rewrite "
                f"{len(ours[rank].steps)}; {agree}"
                f"{_within(gates)}{_short_batch(record.steps, len(ours[rank].steps))}{unjudged}"
            )
            return Judgement(ProofVerdict.STEP_COUNT, message, None, steps, ())
    weights: tuple[WeightComparison, ...] = ()
    if not blind:
        weights, difference = diagnose.final_weights(original, ours, gates)
    if difference is not None:
        message = difference.message + _beyond_noise(difference, gates)
        return Judgement(ProofVerdict.DIFFERS, message, difference, steps, weights)
    if not blind and (difference := diagnose.printed(original, ours, gates)):
        return Judgement(ProofVerdict.DIFFERS, difference.message, difference, steps, weights)
    if all(not step.original.gradient_norm for step in steps):
        message = (
            "every gradient is zero on both sides, so the losses and weights say nothing about the "
            "rewrite (a loss that is constant, such as cross_entropy over one class?)"
        )
        return Judgement(ProofVerdict.VACUOUS, message, None, steps, weights)
    if blind:
        message = (
            f"match in {_how_many(steps, blind[0])}{_within(gates)}{unjudged}; final weights and printed "
            "numbers were not compared"
        )
        return Judgement(ProofVerdict.MATCH, message, None, steps, (), partial=True)
    compared = sum(weight.gate is not None for weight in weights)
    message = (
        f"{_on_ranks(steps, len(original))} and {many(compared, 'final weight')} agree"
        f"{_within(gates)}{_not_compared(len(weights) - compared)}"
    )
    return Judgement(ProofVerdict.MATCH, message, None, steps, weights)


def _on_ranks(steps: Sequence[StepComparison], ranks: int) -> str:
    """Number of optimizer steps of a rank, and of ranks: "48 steps on each of 2 ranks"."""
    each = len({(step.optimizer, step.step) for step in steps})
    return f"{many(each, 'step')} on {f'each of {ranks} ranks' if ranks > 1 else '1 rank'}"


def _not_compared(weights: int) -> str:
    """End of the verdict about final weights without a limit."""
    if not weights:
        return ""
    were = many(weights, "more final weight was", "more final weights were")
    return f"; {were} not compared, because rounding alone decides the values"


def _how_many(steps: Sequence[StepComparison], judged: int) -> str:
    """Number of optimizer steps among the first comparisons, of all: "3 of 8 steps"."""
    few, every = (
        len({(step.optimizer, step.step) for step in some}) for some in (steps[:judged], steps)
    )
    return f"{few} of {many(every, 'step')}"


def _within(gates: Gates) -> str:
    """Gates within which the sides agree beyond the fixed gates; smaller faults are not detected."""
    if gates.floor is None:
        return ""
    return f", within {MARGIN:g} times the noise of the original ({_figures(gates.floor)})"


def _short_batch(steps: Sequence[StepRecord], others: int) -> str:
    """Explanation of the original's last steps, if they have other batches than the steps before them."""
    shapes = [[shape for shape, *_ in step.details.inputs] for step in steps]
    if 0 < others < len(steps) and shapes[others] != shapes[others - 1]:
        return " (drop_last=True leaves out the last short batch of each epoch)"
    return ""


def _beyond_noise(difference: Difference, gates: Gates) -> str:
    if difference.size is None:
        return ""
    small = _SMALL if difference.size < SMALL else ""
    if gates.floor is None:
        return small
    return (
        f"; {difference.size:.1e}, more than {MARGIN:g} times the rounding noise of the original in "
        f"{many(gates.floor.runs, 'run')}{small}"
    )


def _figures(floor: NoiseFloor) -> str:
    """Noise of the judged values; values above the ceiling are reported separately."""
    values, weights = judged_noise(floor)
    return f"{values:.1e} in losses and gradient norms, {weights:.1e} in weights"


# End of the verdict on a difference that rounding may explain all the same.
_SMALL = "; rounding may still explain a difference this small, docs/explanation/noise.md says how to tell"
# Maximum number of names in a note.
_MOST_NAMES = 3
# Number of runs of the original in words, by the number of runs that measured its noise.
_TIMES = {1: "twice", 2: "three times", 3: "four times", 4: "five times"}


def _noise_notes(weights: Sequence[WeightComparison], floor: NoiseFloor | None) -> list[str]:
    if floor is None:
        return []
    times = _TIMES.get(floor.runs, f"{floor.runs + 1} times")
    lines = [
        f"the original was run {times}, with other rounding. The values that are judged differ by up to "
        f"{_figures(floor)}: this is the noise. The tolerance of a step is {MARGIN:g} times its noise, if "
        "that is more than the fixed tolerance"
    ]
    far = [
        weight.name
        for weight in weights
        if weight.gate is None and not (weight.noise or weight.none_left)
    ]
    if far:
        lines.append(
            f"{_named(far)}: the original differs from itself by more than {CEILING:g}, so the values "
            "were not compared"
        )
    return lines


def _named(names: Sequence[str]) -> str:
    """First names, and the number of further ones."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _drowned(step: StepComparison, gates: Gates) -> str:
    noise = gates.floor.at(step.optimizer, step.step).values if gates.floor else 0.0
    when, remedy = (
        "when it rounds otherwise",
        "a lower learning rate or larger batches make rounding grow less",
    )
    if gates.bfloat16:
        when, remedy = "when it rounds as XLA does in bfloat16", gates.remedy
    return (
        f"from step {step.step} on the original differs from itself by {noise:.1e} {when}: "
        f"nothing is judged there ({remedy})"
    )


def notes(
    original: _Ranks,
    ours: _Ranks,
    replicas: int,
    weights: Sequence[WeightComparison] = (),
    floor: NoiseFloor | None = None,
) -> tuple[str, ...]:
    """Notes on what may explain a difference, or limits the verdict."""
    lines = _noise_notes(weights, floor)
    if walking := [weight.name for weight in weights if weight.noise]:
        lines.append(
            f"{_named(walking)}: gradients are zero but for rounding (a bias before a "
            "normalization?), so the values walk at random on any device and were not compared"
        )
    if moved := [weight for weight in weights if weight.left_out[0]]:
        some = [
            f"{weight.left_out[0]} of {weight.left_out[1]} in {weight.name}" for weight in moved
        ]
        lines.append(
            f"{_named(some)}: not compared. The gradients of these elements are as small as their rounding "
            "error, and the optimizer turns them into full steps"
        )
    if any(weight.name.endswith("running_var") for weight in weights):
        lines.append(
            "running variances of batch normalization are compared as torch_xla keeps them: it averages the "
            "biased variance (divided by n), torch the unbiased one (by n - 1)"
        )
    if original.keys() == ours.keys() and original and len(original) != replicas:
        lines.append(
            f"the script trained on {len(original)} ranks of its own choice, not on {replicas}"
        )
    every = [step for ranks in (original, ours) for rank in ranks.values() for step in rank.steps]
    dropout = max((step.dropout for step in every), default=0.0)
    if dropout:
        lines.append(
            f"dropout with p={dropout:g} was active: the two sides draw different masks, so their "
            "losses differ; set it to 0 for a proof, or leave --no-deterministic out"
        )
    if off := max((step.switched_off for step in every), default=0.0):
        lines.append(
            f"dropout with p={off:g} was switched off on both sides: what its masks do was not compared"
        )
    if every and not any(step.losses for step in every):
        lines.append("no backward pass was seen (torch.autograd.grad is not): no loss was compared")
    return tuple(lines)
