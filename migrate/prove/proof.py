"""Prove that a rewritten script trains as the original does: run both, compare step by step."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate.prove import records
from migrate.prove.compare import StepComparison, WeightComparison
from migrate.prove.diagnose import Difference
from migrate.prove.errors import (
    OriginalFailedError,
    RewriteFailedError,
    RunTimeoutError,
    ScriptFailedError,
)
from migrate.prove.floor import NoiseFloor
from migrate.prove.records import RankRecord
from migrate.prove.run import Side, run_script
from migrate.prove.verdict import Verdict, judge_with_floor, notes


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
        floor: how far the original is from itself; None if it was not run a second time.
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
    floor: NoiseFloor | None = None

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
        """The largest relative L2 distance of a final weight that is held to a gate, None if none is."""
        held = [weight.difference for weight in self.weights if weight.gate is not None]
        return max(held, default=None)


def prove(
    script: Path,
    rewritten: Path,
    args: Sequence[str] = (),
    *,
    replicas: int = 2,
    timeout: float | None = None,
    dropout: bool = True,
    autocast: bool = True,
    start: str | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Proof:
    """Run the original on the CPU with gloo and the rewrite on XLA, and compare all their steps.

    If they differ by a little, the original runs once more with another order of summation: see
    `migrate.prove.gates`.

    Args:
        script: the original CUDA script.
        rewritten: its rewrite for torch_xla.
        args: arguments for both.
        replicas: number of ranks on both sides.
        timeout: seconds for each run; None waits for ever.
        dropout: False switches every dropout off, on both sides.
        autocast: False switches autocast off, on both sides.
        start: how the original's ranks are started, where there are several ways: see `run_script`.
        progress: told, in a few words, what is running.

    Raises:
        OriginalFailedError: the original does not run.
        RewriteFailedError: the rewrite does not run.
        RunTimeoutError: one of them ran too long.
        RecordingError: what a run recorded is incomplete.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:

        def run(side: Side, *, reordered: bool = False) -> tuple[dict[int, RankRecord], float]:
            directory = Path(folder) / (f"{side}-again" if reordered else side)
            directory.mkdir()
            return record_run(
                script if side == "original" else rewritten,
                args,
                side=side,
                replicas=replicas,
                folder=directory,
                timeout=timeout,
                dropout=dropout,
                autocast=autocast,
                reordered=reordered,
                start=start,
            )

        failed: list[str] = []

        def again() -> dict[int, RankRecord] | None:
            progress(
                "a small difference: running the original once more, with another order of summation"
            )
            try:
                return run("original", reordered=True)[0]
            except (ScriptFailedError, RunTimeoutError) as error:
                failed.append(f"the run that measures the original's noise failed: {error}")
                return None

        progress(f"running the {_SIDES['original'].format(replicas)}")
        original, original_seconds = run("original")
        progress(f"running the {_SIDES['xla'].format(replicas)}")
        ours, rewritten_seconds = run("xla")
        progress("comparing")
        judgement = judge_with_floor(original, ours, again)
        return Proof(
            verdict=judgement.verdict,
            message=judgement.message,
            replicas=replicas,
            steps=judgement.steps,
            weights=judgement.weights,
            difference=judgement.difference,
            notes=(
                *notes(original, ours, replicas, judgement.weights, judgement.floor),
                *failed,
                *(() if dropout else ("every dropout was switched off on both sides",)),
                *(() if autocast else ("autocast was switched off on both sides",)),
            ),
            original_seconds=original_seconds,
            rewritten_seconds=rewritten_seconds,
            floor=judgement.floor,
        )


_SIDES: dict[Side, str] = {
    "original": "original on {} gloo ranks on the CPU",
    "xla": "rewrite on {} XLA replicas",
}


def record_run(
    path: Path,
    args: Sequence[str] = (),
    *,
    side: Side,
    replicas: int,
    folder: Path,
    timeout: float | None = None,
    dropout: bool = True,
    autocast: bool = True,
    reordered: bool = False,
    start: str | None = None,
) -> tuple[dict[int, records.RankRecord], float]:
    """Run one side, and read what its ranks recorded in `folder`; with the seconds that it took.

    Raises:
        OriginalFailedError, RewriteFailedError, RunTimeoutError, RecordingError: as for `prove`.
    """
    result = run_script(
        path,
        args,
        side=side,
        replicas=replicas,
        record_dir=folder,
        timeout=timeout,
        output="capture",
        dropout=dropout,
        autocast=autocast,
        reordered=reordered,
        start=start,
    )
    if result.returncode:
        raise _failure(path, side, result.returncode, result.output)
    return records.read(folder), result.seconds


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
