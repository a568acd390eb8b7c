"""Prove that a rewritten script trains as the original does: run both, compare step by step."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from migrate.prove import compare, records
from migrate.prove.compare import Difference, StepComparison, WeightComparison
from migrate.prove.errors import OriginalFailedError, RewriteFailedError, ScriptFailedError
from migrate.prove.run import Side, run_script


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
class Proof:
    """The comparison of an original script with its rewrite.

    Attributes:
        verdict: what was found.
        message: one line that says it in words.
        replicas: the number of ranks asked for.
        steps: every optimizer step of every rank that both sides have, in order.
        weights: the final parameters and buffers, each at its farthest rank; empty if the sides
            made different numbers of steps.
        difference: the first difference, if there is one.
        notes: what may explain a difference, or limits what the verdict says.
        original_seconds: wall time of the original run.
        rewritten_seconds: wall time of the rewritten run.
    """

    verdict: Verdict
    message: str
    replicas: int
    steps: tuple[StepComparison, ...]
    weights: tuple[WeightComparison, ...]
    difference: Difference | None
    notes: tuple[str, ...]
    original_seconds: float
    rewritten_seconds: float

    @property
    def equal(self) -> bool:
        """Whether the rewrite was shown to compute the same."""
        return self.verdict is Verdict.EQUAL

    @property
    def max_loss_difference(self) -> float | None:
        """The largest relative difference of a loss; None if no loss was recorded."""
        differences = [step.loss_difference for step in self.steps]
        return max((value for value in differences if value is not None), default=None)

    @property
    def max_weight_difference(self) -> float | None:
        """The largest relative L2 distance of a final weight; None if none was compared."""
        return max((weight.difference for weight in self.weights), default=None)


def prove(
    script: Path,
    rewritten: Path,
    args: Sequence[str] = (),
    *,
    replicas: int = 2,
    timeout: float | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Proof:
    """Run the original on the CPU with gloo and the rewrite on XLA, and compare all their steps.

    Args:
        script: the original CUDA script.
        rewritten: its rewrite for torch_xla.
        args: arguments for both.
        replicas: number of ranks on both sides.
        timeout: seconds for each of the two runs; None waits for ever.
        progress: told, in a few words, what is running.

    Raises:
        OriginalFailedError: the original does not run.
        RewriteFailedError: the rewrite does not run.
        RunTimeoutError: one of them ran too long.
        RecordingError: what a run recorded is incomplete.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:
        runs = []
        sides: tuple[tuple[Side, Path], ...] = (("original", script), ("xla", rewritten))
        for side, path in sides:
            directory = Path(folder) / side
            directory.mkdir()
            progress(f"running {path.name} on {replicas} {_RANKS[side]}")
            runs.append(_run(path, args, side, replicas, directory, timeout))
        (original, original_seconds), (ours, rewritten_seconds) = runs
        progress("comparing")
        verdict, message, difference, steps, weights = _judge(original, ours)
        return Proof(
            verdict=verdict,
            message=message,
            replicas=replicas,
            steps=steps,
            weights=weights,
            difference=difference,
            notes=_notes(original, ours, replicas),
            original_seconds=original_seconds,
            rewritten_seconds=rewritten_seconds,
        )


_Ranks = dict[int, records.RankRecord]
_RANKS = {"original": "gloo ranks on the CPU", "xla": "XLA replicas"}


def _run(
    path: Path,
    args: Sequence[str],
    side: Side,
    replicas: int,
    directory: Path,
    timeout: float | None,
) -> tuple[_Ranks, float]:
    result = run_script(
        path,
        args,
        side=side,
        replicas=replicas,
        record_dir=directory,
        timeout=timeout,
        capture=True,
    )
    if result.returncode:
        raise _failure(path, side, result.returncode, result.output)
    return records.read(directory), result.seconds


def _failure(path: Path, side: Side, returncode: int, output: str) -> ScriptFailedError:
    reason = _last_error(output) or f"exit code {returncode}"
    if side == "original":
        return OriginalFailedError(
            f"{path} is broken before rewriting: {reason}",
            "make the original run on the CPU with gloo first",
            output,
        )
    return RewriteFailedError(
        f"{path} failed on XLA where the original runs: {reason}",
        "mend the rewritten script at the place that its traceback names",
        output,
    )


def _last_error(output: str) -> str | None:
    """The last line of the output that names an exception."""
    lines = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*", output, re.M)
    return lines[-1].strip() if lines else None


def _judge(
    original: _Ranks, ours: _Ranks
) -> tuple[
    Verdict,
    str,
    Difference | None,
    tuple[StepComparison, ...],
    tuple[WeightComparison, ...],
]:
    if not original or not ours:
        sides = [name for name, ranks in (("original", original), ("rewrite", ours)) if not ranks]
        message = (
            f"no optimizer step was recorded in the {' nor in the '.join(sides)}: "
            "nothing was compared"
        )
        return Verdict.NO_STEPS, message, None, (), ()
    if original.keys() != ours.keys():
        message = (
            f"the original trained on ranks {compare.ranges(original)}, "
            f"the rewrite on ranks {compare.ranges(ours)}"
        )
        return Verdict.RANK_COUNT, message, None, (), ()
    steps = compare.steps(original, ours)
    difference = compare.first_difference(original, ours, steps)
    not_finite = next((step for step in steps if not step.finite), None)
    if not_finite and (difference is None or difference.step >= not_finite.step):
        message = (
            f"step {not_finite.step}, rank {not_finite.rank}: loss {not_finite.original.loss} and "
            f"gradient norm {not_finite.original.gradient_norm} in the original: nothing after a "
            "NaN or an infinity can be compared"
        )
        return Verdict.NOT_FINITE, message, None, steps, ()
    if difference is not None:
        return Verdict.DIFFERS, difference.message, difference, steps, ()
    for rank, record in original.items():
        if len(record.steps) != len(ours[rank].steps):
            message = (
                f"the original made {len(record.steps)} steps on rank {rank}, the rewrite "
                f"{len(ours[rank].steps)}; the steps of both agree (drop_last=True leaves out the "
                "last short batch of each epoch)"
            )
            return Verdict.STEP_COUNT, message, None, steps, ()
    weights, difference = compare.final_weights(original, ours)
    if difference is not None:
        return Verdict.DIFFERS, difference.message, difference, steps, weights
    if all(not step.original.gradient_norm for step in steps):
        message = (
            "every gradient is zero on both sides, so the losses and weights say nothing about the "
            "rewrite (a loss that is constant, such as cross_entropy over one class?)"
        )
        return Verdict.VACUOUS, message, None, steps, weights
    message = f"{len(steps)} steps on {len(original)} ranks and {len(weights)} final weights agree"
    return Verdict.EQUAL, message, None, steps, weights


def _notes(original: _Ranks, ours: _Ranks, replicas: int) -> tuple[str, ...]:
    notes = []
    if original.keys() == ours.keys() and original and len(original) != replicas:
        notes.append(
            f"the script trained on {len(original)} ranks of its own choice, not on {replicas}"
        )
    every = [step for ranks in (original, ours) for rank in ranks.values() for step in rank.steps]
    dropout = max((step.dropout for step in every), default=0.0)
    if dropout:
        notes.append(
            f"dropout with p={dropout:g} was active: the two sides draw different masks, so their "
            "losses differ; set it to 0 for a proof"
        )
    if every and not any(step.losses for step in every):
        notes.append("no backward pass was seen (torch.autograd.grad is not): no loss was compared")
    return tuple(notes)
