"""Prove that a rewritten script trains as the original does: run both, compare step by step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from migrate.catalogue.target import XLA, Target
from migrate.observe.divergences import (
    GraphDivergence,
    alone,
    alone_words,
    divergence_remedy,
    is_cut,
    partings,
)
from migrate.observe.graphs import in_16_bits
from migrate.observe.records import read_lines
from migrate.place import Place
from migrate.progress import Progress, no_progress
from migrate.prove.compare.compare import StepComparison, WeightComparison
from migrate.prove.compare.difference import Difference
from migrate.prove.compare.gates import AMP_OFF, NOISE_RUNS
from migrate.prove.compare.noise_floor import NoiseFloor
from migrate.prove.compare.verdict import (
    ProofVerdict,
    judge_with_floor,
    judge_with_floors,
    notes,
    remedy,
)
from migrate.prove.errors import (
    RecordingError,
    ReplicasPartedError,
    RunTimeoutError,
    ScriptFailedError,
)
from migrate.prove.failure import disagreement, failure, is_own_ending
from migrate.prove.progress import recorded_steps, steps_told
from migrate.prove.recording import records
from migrate.prove.recording.records import RankRecord
from migrate.prove.run import run_script
from migrate.prove.runtimes import RUNTIMES, SIDES, Runtime, Side
from migrate.prove.settings import Settings

DEFAULT = Settings()
# Subfolder of a recording for what the target does in the rewrite.
OBSERVED = "observed"


@dataclass(frozen=True)
class Proof:
    """Comparison of an original script with its rewrite.

    Attributes:
        verdict: the verdict.
        message: one line that says it in words.
        replicas: the number of ranks asked for.
        steps: every optimizer step of every rank that both sides have, in order.
        weights: the final parameters and buffers, each at its farthest rank; empty if the sides
            made different numbers of steps.
        difference: the first difference, if there is one.
        notes: notes that explain a difference or limit the verdict.
        original_seconds: wall time of the original run.
        rewritten_seconds: wall time of the rewritten run.
        floor: noise floor of the original; None if it was not run a second time.
        settings: settings of both sides, with the number of steps.
        bfloat16: whether both sides multiplied matrices in bfloat16, which has other gates.
        partial: whether only the first steps were judged, because the noise of the others is too large.
    """

    verdict: ProofVerdict
    message: str
    replicas: int
    steps: tuple[StepComparison, ...]
    weights: tuple[WeightComparison, ...]
    difference: Difference | None
    notes: tuple[str, ...]
    original_seconds: float
    rewritten_seconds: float
    floor: NoiseFloor | None = None
    settings: Settings = DEFAULT
    bfloat16: bool = False
    partial: bool = False

    @property
    def equal(self) -> bool:
        """Whether the rewrite was shown to compute the same."""
        return self.verdict is ProofVerdict.MATCH

    @property
    def max_loss_difference(self) -> float | None:
        """The largest relative difference of a loss; None if no loss was recorded."""
        differences = [step.loss_difference for step in self.steps]
        return max((value for value in differences if value is not None), default=None)

    @property
    def max_weight_difference(self) -> float | None:
        """The largest relative L2 distance of a final weight with a gate; None if none has one."""
        held = [weight.difference for weight in self.weights if weight.gate is not None]
        return max(held, default=None)


def prove(
    script: Path,
    rewritten: Path,
    args: Sequence[str] = (),
    *,
    replicas: int = 2,
    settings: Settings = DEFAULT,
    progress: Progress = no_progress,
    target: Target = XLA,
) -> Proof:
    """Run the original on the CPU with gloo and the rewrite on its target, and compare all their steps.

    Each runs in a folder of its own: see `migrate.place`. If they differ by a little, the original
    runs once more with other rounding: see `compare.gates`.

    Args:
        script: the original CUDA script.
        rewritten: its rewrite for the target.
        args: arguments for both.
        replicas: number of ranks on both sides.
        settings: settings of both sides, with the number of steps.
        progress: called with a few words on what is running.
        target: package that drives the TPU in the rewrite.

    Raises:
        OriginalFailedError: the original does not run.
        RewriteFailedError: the rewrite does not run.
        RunTimeoutError: one of them ran too long.
        RecordingError: what a run recorded is incomplete.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:
        runs = Runs(Path(folder), script, rewritten, args, replicas, settings, target)
        return runs.proof(progress)


class ComparedRun(Protocol):
    """Run as a comparison needs it: see `RecordedRun`."""

    @property
    def ranks(self) -> dict[int, RankRecord]:
        """Records of the ranks."""

    @property
    def seconds(self) -> float:
        """Wall time in seconds."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that limit what the recording proves."""

    @property
    def parted(self) -> str:
        """Location where its replicas run different graphs, in words."""


@dataclass(frozen=True)
class RecordedRun:
    """Recorded run.

    Attributes:
        ranks: records of the ranks.
        seconds: wall time.
        place: the mirror in which it ran, with the files that it wrote.
        folder: folder of the recording.
        notes: notes that limit what the recording proves.
        parted: location where its replicas run different graphs, in words; "" if they do not.
        as_written: runs the same once more, rounding to 16 bits as written; None if none of its graphs
            computes in 16 bits.
    """

    ranks: dict[int, RankRecord]
    seconds: float
    place: Place
    folder: Path
    notes: tuple[str, ...]
    parted: str = ""
    as_written: Callable[[], RecordedRun] | None = None


@dataclass
class Runs:
    """Runs of a proof, each in a mirror and with a recording of its own.

    Attributes:
        folder: an empty folder for all runs.
        script: the original.
        rewritten: its rewrite.
        args: arguments for both.
        replicas: number of ranks.
        settings: settings of the proof.
        target: package that drives the TPU in the rewrite.
    """

    folder: Path
    script: Path
    rewritten: Path
    args: Sequence[str]
    replicas: int
    settings: Settings
    target: Target = XLA
    _count: int = 0
    _tell: Callable[[int], None] = lambda steps: None

    @property
    def runtime(self) -> Runtime:
        """Runtime of the rewrite."""
        return RUNTIMES[self.target]

    def proof(self, progress: Progress = no_progress) -> Proof:
        """Run both sides and compare them: see `prove`."""
        message = f"running the original on {self.replicas} gloo ranks on the CPU"
        self.telling(progress, message)
        original = self.record("original")
        steps = max((len(record.steps) for record in original.ranks.values()), default=0)
        message = f"compiling and running the rewrite on {self.replicas} {self.runtime.replicas}"
        self.telling(progress, message, steps)
        try:
            ours = self.record(self.runtime.side)
        except ReplicasPartedError as error:
            return self.without_steps(ProofVerdict.PARTED, error.where, original)
        progress("comparing")

        def again(settings: Settings) -> RecordedRun:
            return self.record("original", reordered=True, settings=settings)

        return compared(original, ours, self, again, progress)

    def telling(self, progress: Progress, message: str, steps: int | None = None) -> None:
        """Report what is running, and each step of the next run.

        Args:
            progress: called with a few words.
            message: what is running.
            steps: expected number of steps; None: unknown, unless the settings say it.
        """
        total = steps or self.settings.steps or 0
        progress(message, 0, total, "step")
        self._tell = lambda done: progress(message, done, max(total, done) if total else 0, "step")

    def without_steps(self, verdict: ProofVerdict, message: str, original: ComparedRun) -> Proof:
        """Create a proof without a comparison, because there is nothing to compare the original with."""
        return Proof(
            verdict=verdict,
            message=message,
            replicas=self.replicas,
            steps=(),
            weights=(),
            difference=None,
            notes=(
                *self.settings.notes(_most_steps(original.ranks)),
                *original.notes,
                *self.runtime.limits(self.replicas),
            ),
            original_seconds=original.seconds,
            rewritten_seconds=0.0,
            settings=self.settings,
        )

    def record(
        self,
        side: Side,
        *,
        reordered: bool = False,
        settings: Settings | None = None,
        more: Sequence[str] = (),
        before: Callable[[Place], None] = lambda place: None,
        until: Callable[[Place, Path], bool] | None = None,
        checkpoint: Path | None = None,
        as_written: bool = False,
    ) -> RecordedRun:
        """Run one side.

        Args:
            side: original or rewrite.
            reordered: with other rounding.
            settings: settings other than those of the proof.
            more: arguments besides those of the proof.
            before: puts files into the mirror before the run.
            until: ends the run once it is true for its mirror and the folder of its recording; the records
                of the ranks are then read as far as possible.
            checkpoint: a file of the script whose first version is kept in the folder of the recording.
            as_written: whether XLA rounds to 16 bits as written, also within a fusion.

        Raises:
            OriginalFailedError, RewriteFailedError, RunTimeoutError, RecordingError: as for `prove`.
        """
        self._count += 1
        home, folder = (self.folder / f"{name}{self._count}" for name in ("place", "records"))
        home.mkdir()
        folder.mkdir()
        path = self.script if side == "original" else self.rewritten
        place = Place(home, path, Path.cwd())
        before(place)
        tell, self._tell = self._tell, lambda steps: None
        with steps_told(tell, lambda: recorded_steps(folder)):
            ranks, seconds = record_run(
                path,
                [*self.args, *more],
                side=side,
                replicas=self.replicas,
                folder=folder,
                settings=settings or self.settings,
                reordered=reordered,
                place=place,
                until=None if until is None else lambda: until(place, folder),
                checkpoint=None if checkpoint is None else place.inside(checkpoint),
                as_written=as_written,
            )
        notes = tuple(
            f"{changed} was changed while the {'original' if side == 'original' else 'rewrite'} ran; it is "
            "too large to copy, so a run after it may have read that"
            for changed in place.changed()
        )
        graphs = _runs_graphs(side)
        parted = parted_replicas(folder) if graphs else ""
        if graphs and not parted:
            notes += _alone_replicas(folder)
        once_more = None
        if graphs and not as_written and _computes_in_16_bits(folder):
            once_more = partial(
                self.record,
                side,
                reordered=reordered,
                settings=settings,
                more=more,
                before=before,
                until=until,
                checkpoint=checkpoint,
                as_written=True,
            )
        return RecordedRun(ranks, seconds, place, folder, notes, parted, once_more)


def compared(
    original: ComparedRun,
    ours: RecordedRun,
    runs: Runs,
    again: Callable[[Settings], RecordedRun],
    progress: Progress = no_progress,
    floors: Iterable[NoiseFloor] | None = None,
) -> Proof:
    """Compare two runs.

    Args:
        original: the reference run.
        ours: the run to compare.
        runs: runs of the proof.
        again: runs the reference once more with other rounding and the given settings.
        progress: called with a few words on what is running.
        floors: earlier measurements of the reference's noise, instead of running it again.
    """
    failed: list[str] = []
    measured = [0]

    def second() -> dict[int, RankRecord] | None:
        how = "without autocast" if bfloat16 else "with other rounding"
        steps = max((len(rank.steps) for rank in original.ranks.values()), default=0)
        runs.telling(progress, f"small difference: running the original again {how}", steps)
        measured[0] += 1
        settings = replace(runs.settings, weights_move=measured[0] > NOISE_RUNS)
        try:
            return again(replace(settings, amp="off", half=True) if bfloat16 else settings).ranks
        except (ScriptFailedError, RunTimeoutError) as error:
            # This does not mean that the original is broken: it has just run.
            reason = getattr(error, "reason", "") or error.what
            failed.append(
                f"the run of the original that measures its noise failed ({reason}): the gates are the "
                "fixed ones"
            )
            return None

    def exactly() -> dict[int, RankRecord] | None:
        assert ours.as_written is not None
        steps = max((len(rank.steps) for rank in ours.ranks.values()), default=0)
        how = "rounding to 16 bits as written"
        runs.telling(progress, f"small difference: running the rewrite again, {how}", steps)
        try:
            return ours.as_written().ranks
        except (ScriptFailedError, RunTimeoutError) as error:
            reason = getattr(error, "reason", "") or error.what
            failed.append(f"the run of the rewrite that rounds as written failed ({reason})")
            return None

    as_written = exactly if ours.as_written is not None else None
    theirs, mine = (multiplied_in(side.ranks, runs.settings) for side in (original, ours))
    bfloat16 = "bfloat16" in theirs & mine
    if floors is None:
        judgement = judge_with_floor(original.ranks, ours.ranks, second, bfloat16, as_written)
    else:
        judgement = judge_with_floors(original.ranks, ours.ranks, floors, bfloat16, as_written)
    if ours.parted and judgement.verdict is not ProofVerdict.DIFFERS:
        said = f"{ours.parted}. Of the values: {judgement.verdict.value}, {judgement.message}"
        judgement = replace(judgement, verdict=ProofVerdict.PARTED, message=said)
    words, difference = runs.runtime.in_words, judgement.difference
    if difference is not None:
        difference = replace(difference, message=words(difference.message))
    how = remedy(original.ranks) if bfloat16 else ""
    seen = notes(original.ranks, ours.ranks, runs.replicas, judgement.weights, judgement.floor)
    return Proof(
        verdict=judgement.verdict,
        message=words(judgement.message),
        replicas=runs.replicas,
        steps=judgement.steps,
        weights=judgement.weights,
        difference=difference,
        notes=(
            *filter(None, map(words, seen)),
            *_in_bfloat16(original.ranks),
            *failed,
            *runs.settings.notes(_most_steps(original.ranks)),
            *([_BFLOAT16 + how] if bfloat16 else []),
            *([_FLOAT32.format(call=runs.runtime.in_float32)] if mine == {"float32"} else []),
            *([_WITHOUT_AUTOCAST] if how == AMP_OFF and judgement.floor else []),
            *([_FLOAT16] if "float16" in theirs and "bfloat16" in mine else []),
            *original.notes,
            *ours.notes,
            *runs.runtime.limits(runs.replicas),
        ),
        original_seconds=original.seconds,
        rewritten_seconds=ours.seconds,
        floor=judgement.floor,
        settings=runs.settings,
        bfloat16=bfloat16,
        partial=judgement.partial,
    )


def _most_steps(ranks: Mapping[int, RankRecord]) -> int:
    """Number of steps of the optimizer with the most."""
    return max((step.step for record in ranks.values() for step in record.steps), default=0)


def parted_replicas(folder: Path, *, stopped: bool = False) -> str:
    """Location where the replicas of a watched run run different graphs, in words; "" if they do not.

    Args:
        folder: folder of its recording.
        stopped: whether a replica was stopped before its end: see `migrate.observe.divergences.partings`.
    """
    for parting in partings(read_lines(folder / OBSERVED), stopped=stopped):
        to_do = divergence_remedy(parting.changes)
        return (
            f"the replicas of the rewrite run different graphs at sync {parting.step}: {_in_words(parting)}; "
            f"on a TPU they may wait for each other in the next collective. To do: {to_do}"
        )
    return ""


def _alone_replicas(folder: Path) -> tuple[str, ...]:
    """Return a note on graphs without collectives that only some replicas of a watched run execute."""
    steps = read_lines(folder / OBSERVED)
    for parting in alone(steps):
        if parting.pending:
            return (
                f"the replicas of the rewrite run different graphs at sync {parting.step}, after a read: "
                f"{_in_words(parting)}. A read runs only what its value needs, so a collective before it may "
                "still be pending on a TPU, and replicas may wait for each other. Call torch_xla.sync() "
                "on all replicas after the collective",
            )
        return (
            f"the replicas of the rewrite run different graphs without collectives at sync {parting.step}: "
            f"{_in_words(parting)}: {alone_words(is_cut(steps))}. Each shape is compiled",
        )
    return ()


def _computes_in_16_bits(folder: Path) -> bool:
    """Whether a graph of a watched run computes in 16 bits."""
    return any(
        in_16_bits(execution.nodes)
        for step in read_lines(folder / OBSERVED)
        for execution in step.executions
    )


def _runs_graphs(side: Side) -> bool:
    """Whether the steps of a side are graphs, which its replicas may run differently."""
    return side != "original" and SIDES[side].runs_graphs


def _in_words(parting: GraphDivergence) -> str:
    """Line of each replica, and the operations that only the second graph has."""
    lines = (
        f"{Path(frame.file).name}:{frame.line}" if frame else "nothing more"
        for frame in parting.frames
    )
    first, other = parting.ranks
    here, there = lines
    change = f": {parting.changes[0]}" if parting.changes else ""
    if here == there:
        return f"replicas {first} and {other} both run {here}, replica {other} with another graph{change}"
    return f"replica {first} runs {here} and replica {other} runs {there}{change}"


_BFLOAT16 = "both sides multiplied matrices in bfloat16, so small faults may stay unseen: "
_FLOAT32 = (
    "matrices were multiplied in float32 here; a TPU multiplies float32 in one pass of bfloat16, which "
    "changes losses from the third digit on, unless the script asks for more: {call}"
)
_WITHOUT_AUTOCAST = (
    "how the noise of bfloat16 was measured: the original runs in float32, and each result that autocast "
    "would round to bfloat16 is changed at random by half a unit of bfloat16"
)
_FLOAT16 = (
    "the original multiplied matrices in float16, the rewrite in bfloat16, which rounds differently: "
    "both sides agree without --amp keep, or with --amp off"
)


def _in_bfloat16(ranks: dict[int, RankRecord]) -> list[str]:
    """Return the note on an original that was changed to the dtype of the rewrite."""
    if any(step.made_bfloat16 for record in ranks.values() for step in record.steps):
        return [
            "both sides used autocast in bfloat16, as the rewrite does (--amp keep leaves the original in "
            "float16)"
        ]
    return []


def multiplied_in(ranks: dict[int, RankRecord], settings: Settings) -> set[str]:
    """Dtypes of a run's matrix multiplications; none where autocast was switched off."""
    if settings.amp == "off":
        # The record has what autocast would have chosen.
        return set()
    return {
        dtype
        for record in ranks.values()
        for step in record.steps
        for seen in step.details.dtypes.values()
        for dtype in seen
    }


def record_run(
    path: Path,
    args: Sequence[str] = (),
    *,
    side: Side,
    replicas: int,
    folder: Path,
    settings: Settings = DEFAULT,
    reordered: bool = False,
    place: Place | None = None,
    until: Callable[[], bool] | None = None,
    checkpoint: Path | None = None,
    as_written: bool = False,
) -> tuple[dict[int, records.RankRecord], float]:
    """Run one side; return the records of its ranks from `folder`, and the seconds of the run.

    Args:
        path: the script.
        args: its arguments.
        side: original or rewrite.
        replicas: number of ranks.
        folder: folder for the recording.
        settings: settings of both sides, with the number of steps.
        reordered: with other rounding.
        place: the mirror to run in; None: the working directory.
        until: ends the run once it is true; the recording is then read as far as possible.
        checkpoint: a file whose first version is kept in `folder`.
        as_written: whether XLA rounds to 16 bits as written, also within a fusion.

    Raises:
        OriginalFailedError, RewriteFailedError, RunTimeoutError, RecordingError: as for `prove`.
    """
    observed = None
    if _runs_graphs(side):
        observed = folder / OBSERVED
        observed.mkdir(exist_ok=True)
    result = run_script(
        path,
        args,
        side=side,
        replicas=replicas,
        record_dir=folder,
        observe_dir=observed,
        timeout=settings.timeout,
        output="capture",
        settings=settings,
        reordered=reordered,
        # Without graphs, a rewrite starts its ranks as its original does.
        start=None if _runs_graphs(side) else settings.start,
        place=place,
        until=until,
        checkpoint=checkpoint,
        as_written=as_written,
    )
    if result.returncode:
        failed = failure(path, side, result.returncode, result.output)
        # A replica that raised an exception, or left, has run less than the others: that is no parting.
        stopped = is_own_ending(failed.reason)
        parted = disagreement(failed.reason) if side != "original" else ""
        if observed is not None:
            parted = parted_replicas(folder, stopped=stopped) or parted
        if parted:
            raise ReplicasPartedError(
                failed.what, failed.remedy, failed.output, failed.reason, parted
            )
        raise failed
    try:
        return records.read(folder), result.seconds
    except RecordingError:
        if until is None or not until():
            raise
        # The process was ended in the middle of a line.
        return {}, result.seconds
