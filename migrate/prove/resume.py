"""Prove that a checkpoint of the original continues in the rewrite, and one of the rewrite in the original.

The original runs until it has written its checkpoint. Both sides start from that file, and their steps are
compared. Then the rewrite runs until it has written its own checkpoint. The original that starts from that
is compared with the original that started from the original's. The script's own code does all the loading.

The first version of the file counts in each run, so that both sides are at the same step: scripts that save
by the clock cannot be compared so.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from migrate.catalogue.target import XLA, Target
from migrate.place import Place
from migrate.progress import Progress, no_progress
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.errors import (
    CheckpointPlaceError,
    NotWrittenError,
    OriginalFailedError,
    RewriteFailedError,
    ScriptFailedError,
)
from migrate.prove.proof import DEFAULT, Proof, RecordedRun, Runs, compared
from migrate.prove.record.capture import copy, kept_path, stamp
from migrate.prove.recording.records import RankRecord
from migrate.prove.runtimes import Side
from migrate.prove.settings import Settings

Ranks = Mapping[int, RankRecord]

# A file without writes for this time is complete.
_STILL_SECONDS = 2.0
# Tolerance for the first step's values after a fresh start, where the same program runs twice on one CPU.
_SAME = 1e-6

FORWARD = "the original's checkpoint in the rewrite"
REVERSE = "the rewrite's checkpoint in the original"
# torch's error for the state of a disabled scaler, such as that of a rewrite.
_EMPTY_SCALER = re.compile(r"state dict is empty.*GradScaler", re.DOTALL)
_SCALER_ADVICE = (
    "bfloat16 needs no scaler, so the rewrite saves an empty state: in {reader}, load a scaler's state only "
    "if it is not empty (`migrate check --explain XLA804`)"
)
_OF_THE_ORIGINAL = ("from the original's checkpoint", "from the rewrite's")


@dataclass(frozen=True)
class Direction:
    """Proof that the checkpoint of one side continues in the other.

    Attributes:
        name: name of the direction, in words.
        proof: proof of the steps after the checkpoint.
        sides: names of the two runs that are compared. In the reverse direction both run the original.
    """

    name: str
    proof: Proof
    sides: tuple[str, str] = ("original", "rewrite")


@dataclass(frozen=True)
class ResumeProof:
    """Proof of both directions.

    Attributes:
        checkpoint: path of the file, as the user passed it.
        directions: one or two directions.
    """

    checkpoint: Path
    directions: tuple[Direction, ...]

    @property
    def equal(self) -> bool:
        """Whether both directions were shown to continue the training."""
        return all(direction.proof.equal for direction in self.directions)

    @property
    def partial(self) -> bool:
        """Whether only the first steps were judged in a direction."""
        return any(direction.proof.partial for direction in self.directions)


def prove_resuming(
    script: Path,
    rewritten: Path,
    args: Sequence[str],
    checkpoint: Path,
    *,
    resume_args: Sequence[str] = (),
    replicas: int = 2,
    settings: Settings = DEFAULT,
    progress: Progress = no_progress,
    target: Target = XLA,
) -> ResumeProof:
    """Prove both directions.

    Args:
        script: the original.
        rewritten: its rewrite.
        args: arguments for both.
        checkpoint: the file, or the folder, that the script writes. If it exists, all runs start from it.
        resume_args: arguments besides `args` for runs that start from the checkpoint.
        replicas: number of ranks.
        settings: settings of both sides; `steps` are counted from the checkpoint.
        progress: called with a few words on what is running.
        target: package that drives the TPU in the rewrite.

    Raises:
        CheckpointPlaceError: the file is in no mirrored folder.
        NotWrittenError: the original never writes it.
        OriginalFailedError: the original does not run, or cannot start from its own file.
        RunTimeoutError: a run took too long.
        RecordingError: what a run recorded is incomplete.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:
        runs = Runs(Path(folder), script, rewritten, args, replicas, settings, target)
        return _Resuming(runs, checkpoint, resume_args, progress).proof()


class _Resuming:
    def __init__(
        self,
        runs: Runs,
        checkpoint: Path,
        resume_args: Sequence[str],
        progress: Progress,
    ) -> None:
        self._runs = runs
        self._checkpoint = checkpoint
        self._resume_args = resume_args
        self._progress = progress
        # State at the start of the command: all runs that write a checkpoint start from it.
        self._start: Path | None = None
        if checkpoint.exists():
            self._start = runs.folder / "start"
            copy(checkpoint, self._start)

    def proof(self) -> ResumeProof:
        fresh: Ranks = {}
        theirs = self._start
        if theirs is None:
            writing, theirs = self._written("original")
            fresh = writing.ranks
        fresh = fresh or self._fresh()
        original = self._resumed_original(theirs)
        if vacuous := self._without_evidence(fresh, original):
            return ResumeProof(self._checkpoint, (Direction(FORWARD, vacuous),))
        return ResumeProof(
            self._checkpoint,
            (
                Direction(FORWARD, self._forward(original, theirs, fresh)),
                Direction(REVERSE, self._reverse(original), _OF_THE_ORIGINAL),
            ),
        )

    def _without_evidence(self, fresh: Ranks, original: RecordedRun) -> Proof | None:
        if not original.ranks:
            return self._runs.without_steps(
                ProofVerdict.NO_STEPS,
                f"the original makes no step when it starts from {self._checkpoint}: give arguments with "
                "which it trains longer",
                original,
            )
        if not _same_start(fresh, original.ranks):
            return None
        return self._runs.without_steps(
            ProofVerdict.VACUOUS,
            f"the original does not read {self._checkpoint}: its first step is that of a fresh start",
            original,
        )

    def _forward(self, original: RecordedRun, theirs: Path, fresh: Ranks) -> Proof:
        self._runs.telling(self._progress, "starting the rewrite from the original's checkpoint")
        try:
            ours = self._from(self._runs.runtime.side, theirs)
        except RewriteFailedError as error:
            return self._cannot("the rewrite", "the original", error, original)
        proof = compared(
            original,
            ours,
            self._runs,
            lambda settings: self._from("original", theirs, reordered=True, settings=settings),
            self._progress,
        )
        if not proof.equal and _same_start(fresh, ours.ranks, 1e-4):
            unread = f"the rewrite does not read {self._checkpoint}: its first step is that of a fresh start"
            return replace(proof, message=f"{proof.message}; {unread}")
        return proof

    def _reverse(self, original: RecordedRun) -> Proof:
        try:
            _, mine = self._written(self._runs.runtime.side)
        except (NotWrittenError, RewriteFailedError) as error:
            return self._runs.without_steps(ProofVerdict.CANNOT_RESUME, error.what, original)
        if self._start is not None:
            _, theirs = self._written("original")
            original = self._resumed_original(theirs)
        self._runs.telling(self._progress, "starting the original from the rewrite's checkpoint")
        try:
            ours = self._from("original", mine)
        except OriginalFailedError as error:
            return self._cannot("the original", "the rewrite", error, original)

        def again(settings: Settings) -> RecordedRun:
            _, reordered = self._written("original", reordered=True, settings=settings)
            return self._from("original", reordered, reordered=True, settings=settings)

        return compared(original, ours, self._runs, again, self._progress)

    def _written(
        self, side: Side, *, reordered: bool = False, settings: Settings | None = None
    ) -> tuple[RecordedRun, Path]:
        """Run one side until it has written its checkpoint, and return the first version."""
        name = "the original" if side == "original" else "the rewrite"
        self._runs.telling(
            self._progress, f"running {name} until it has written {self._checkpoint}"
        )
        watch = _CheckpointWatch(self._checkpoint)

        def before(place: Place) -> None:
            self._put(place, self._start)
            watch.begin(place)

        recorded = self._runs.record(
            side,
            reordered=reordered,
            settings=replace(settings or self._runs.settings, steps=None),
            more=() if self._start is None else self._resume_args,
            before=before,
            until=watch.whole,
            checkpoint=self._checkpoint,
        )
        kept = kept_path(recorded.folder)
        if not kept.exists():
            if not watch.changed(recorded.place):
                raise NotWrittenError(
                    f"{name} ended without writing {self._checkpoint}",
                    "pass the path that the script writes, relative to the working directory, and "
                    "arguments for enough steps",
                )
            copy(recorded.place.inside(self._checkpoint), kept)
        return recorded, kept

    def _fresh(self) -> Ranks:
        """First step of the original without the checkpoint; none where it requires the checkpoint."""
        self._runs.telling(self._progress, "running one step of the original from a fresh start")
        try:
            return self._runs.record(
                "original",
                settings=replace(self._runs.settings, steps=1),
                before=lambda place: self._put(place, None),
            ).ranks
        except OriginalFailedError:
            return {}

    def _resumed_original(self, file: Path) -> RecordedRun:
        which, remedy = "its own checkpoint", "let it resume on the CPU first"
        if file == self._start:
            which = "a checkpoint that existed before"
            remedy = "if the original did not write it, move it away: the original then writes one"
        self._runs.telling(self._progress, f"starting the original from {which}")
        try:
            return self._from("original", file)
        except OriginalFailedError as error:
            raise OriginalFailedError(
                f"the original cannot resume from {which}, {self._checkpoint}: {error.reason}",
                remedy,
                error.output,
            ) from error

    def _from(
        self,
        side: Side,
        file: Path,
        *,
        reordered: bool = False,
        settings: Settings | None = None,
    ) -> RecordedRun:
        return self._runs.record(
            side,
            reordered=reordered,
            settings=settings,
            more=self._resume_args,
            before=lambda place: self._put(place, file),
        )

    def _put(self, place: Place, file: Path | None) -> None:
        if not place.owns(self._checkpoint):
            raise CheckpointPlaceError(
                f"{self._checkpoint} is outside of the folders that each run copies (the working "
                "directory and the folder of the script, except large files)",
                "let the script write the checkpoint there",
            )
        place.put(self._checkpoint, file)

    def _cannot(
        self, reader: str, writer: str, error: ScriptFailedError, original: RecordedRun
    ) -> Proof:
        message = (
            f"{reader} cannot start from {self._checkpoint} as {writer} wrote it: {error.reason}"
        )
        if _EMPTY_SCALER.search(error.reason):
            message = f"{message.removesuffix('.')}; {_SCALER_ADVICE.format(reader=reader)}"
        return self._runs.without_steps(ProofVerdict.CANNOT_RESUME, message, original)


class _CheckpointWatch:
    """Watch of a file that a run will write, from outside.

    Args:
        checkpoint: the path, as the user gave it.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._before = self._last = stamp(checkpoint)
        self._since = 0.0

    def begin(self, place: Place) -> None:
        """Record the state of the file before the run."""
        self._before = self._last = stamp(place.inside(self._checkpoint))

    def changed(self, place: Place) -> bool:
        """Whether the run has written to it."""
        now = stamp(place.inside(self._checkpoint))
        return bool(now) and now != self._before

    def whole(self, place: Place, folder: Path) -> bool:
        """Whether its first version was kept, or the file has not changed for a while."""
        if kept_path(folder).exists():
            return True
        now = stamp(place.inside(self._checkpoint))
        if now != self._last:
            self._last, self._since = now, time.monotonic()
        return self.changed(place) and time.monotonic() - self._since > _STILL_SECONDS


def _same_start(fresh: Ranks, resumed: Ranks, tolerance: float = _SAME) -> bool:
    """Whether the first steps of two runs are the same on every rank: loss and parameters after it."""
    if not fresh or fresh.keys() != resumed.keys():
        return False
    for rank, record in fresh.items():
        if not record.steps or not resumed[rank].steps:
            return False
        first_step, other = record.steps[0], resumed[rank].steps[0]
        pairs = [
            *zip(first_step.losses, other.losses, strict=False),
            *zip(first_step.checksum, other.checksum, strict=False),
        ]
        if not all(math.isclose(*pair, rel_tol=tolerance) for pair in pairs):
            return False
    return True
