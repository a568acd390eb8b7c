"""Prove that a checkpoint of the original continues in the rewrite, and one of the rewrite in the original.

The original runs until it has written its checkpoint; from that file both sides start, and their steps are
compared. Then the rewrite runs until it has written its own, and the original that starts from that is
compared with the original that started from the original's. The script's own code does all the loading.

Of each run the first version of the file counts, so that both sides are at the same step: scripts
that save by the clock cannot be compared so.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from migrate.place import Place
from migrate.progress import Progress, no_progress
from migrate.prove.compare.verdict import Verdict
from migrate.prove.errors import (
    CheckpointPlaceError,
    NotWrittenError,
    OriginalFailedError,
    RewriteFailedError,
    ScriptFailedError,
)
from migrate.prove.proof import DEFAULT, Proof, Recorded, Runs, compared
from migrate.prove.record.capture import copy, kept_path, stamp
from migrate.prove.recording.records import RankRecord
from migrate.prove.run import Side
from migrate.prove.settings import Settings

Ranks = Mapping[int, RankRecord]

# A file that nobody has written to for so long is whole.
_STILL_SECONDS = 2.0
# Of the first step's values from a fresh start, where the same program runs twice on one CPU.
_SAME = 1e-6

FORWARD = "the original's checkpoint in the rewrite"
REVERSE = "the rewrite's checkpoint in the original"


@dataclass(frozen=True)
class Direction:
    """Whether the checkpoint of one side continues in the other.

    Attributes:
        name: of the direction, in words.
        proof: of the steps after it.
    """

    name: str
    proof: Proof


@dataclass(frozen=True)
class ResumeProof:
    """The proof of both directions.

    Attributes:
        checkpoint: the file, as it was given.
        directions: one or two of them.
    """

    checkpoint: Path
    directions: tuple[Direction, ...]

    @property
    def equal(self) -> bool:
        """Whether both directions were shown to continue the training."""
        return all(one.proof.equal for one in self.directions)


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
) -> ResumeProof:
    """Prove both directions.

    Args:
        script: the original.
        rewritten: its rewrite.
        args: arguments for both.
        checkpoint: the file, or the folder, that the script writes. If it is there, all runs start from it.
        resume_args: arguments besides `args` where a run starts from the checkpoint.
        replicas: number of ranks.
        settings: what is made alike; its `steps` are counted after the start from the checkpoint.
        progress: told, in a few words, what is running.

    Raises:
        CheckpointPlaceError: the file is in no folder that is mirrored.
        NotWrittenError: the original never writes it.
        OriginalFailedError: the original does not run, or cannot start from its own file.
        RunTimeoutError: a run took too long.
        RecordingError: what a run recorded is incomplete.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:
        runs = Runs(Path(folder), script, rewritten, args, replicas, settings)
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
        # What is there when the command starts: all runs that write a checkpoint start from it.
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
        if vacuous := self._says_nothing(fresh, original):
            return ResumeProof(self._checkpoint, (Direction(FORWARD, vacuous),))
        return ResumeProof(
            self._checkpoint,
            (
                Direction(FORWARD, self._forward(original, theirs, fresh)),
                Direction(REVERSE, self._reverse(original)),
            ),
        )

    def _says_nothing(self, fresh: Ranks, original: Recorded) -> Proof | None:
        if not original.ranks:
            return self._runs.without_steps(
                Verdict.NO_STEPS,
                f"the original makes no step when it starts from {self._checkpoint}: give arguments with "
                "which it trains longer",
                original,
            )
        if not _same_start(fresh, original.ranks):
            return None
        return self._runs.without_steps(
            Verdict.VACUOUS,
            f"the original does not read {self._checkpoint}: its first step is that of a fresh start",
            original,
        )

    def _forward(self, original: Recorded, theirs: Path, fresh: Ranks) -> Proof:
        self._runs.telling(self._progress, "starting the rewrite from the original's checkpoint")
        try:
            ours = self._from("xla", theirs)
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

    def _reverse(self, original: Recorded) -> Proof:
        try:
            _, mine = self._written("xla")
        except (NotWrittenError, RewriteFailedError) as error:
            return self._runs.without_steps(Verdict.CANNOT_RESUME, error.what, original)
        if self._start is not None:
            _, theirs = self._written("original")
            original = self._resumed_original(theirs)
        self._runs.telling(self._progress, "starting the original from the rewrite's checkpoint")
        try:
            ours = self._from("original", mine)
        except OriginalFailedError as error:
            return self._cannot("the original", "the rewrite", error, original)

        def again(settings: Settings) -> Recorded:
            _, reordered = self._written("original", reordered=True, settings=settings)
            return self._from("original", reordered, reordered=True, settings=settings)

        return compared(original, ours, self._runs, again, self._progress)

    def _written(
        self, side: Side, *, reordered: bool = False, settings: Settings | None = None
    ) -> tuple[Recorded, Path]:
        """Run one side until it has written its checkpoint, and return the first version."""
        name = "the original" if side == "original" else "the rewrite"
        self._runs.telling(
            self._progress, f"running {name} until it has written {self._checkpoint}"
        )
        watch = _Watch(self._checkpoint)

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
        """The first step of the original without the checkpoint; none where it insists on it."""
        self._runs.telling(self._progress, "running one step of the original from a fresh start")
        try:
            return self._runs.record(
                "original",
                settings=replace(self._runs.settings, steps=1),
                before=lambda place: self._put(place, None),
            ).ranks
        except OriginalFailedError:
            return {}

    def _resumed_original(self, file: Path) -> Recorded:
        self._runs.telling(self._progress, "starting the original from its own checkpoint")
        try:
            return self._from("original", file)
        except OriginalFailedError as error:
            raise OriginalFailedError(
                f"the original cannot resume from its own file {self._checkpoint}: {error.reason}",
                "let it resume on the CPU first",
                error.output,
            ) from error

    def _from(
        self,
        side: Side,
        file: Path,
        *,
        reordered: bool = False,
        settings: Settings | None = None,
    ) -> Recorded:
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
        self, reader: str, writer: str, error: ScriptFailedError, original: Recorded
    ) -> Proof:
        message = (
            f"{reader} cannot start from {self._checkpoint} as {writer} wrote it: {error.reason}"
        )
        return self._runs.without_steps(Verdict.CANNOT_RESUME, message, original)


class _Watch:
    """Looks from outside at a file that a run will write.

    Args:
        checkpoint: the path, as the user gave it.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._before = self._last = stamp(checkpoint)
        self._since = 0.0

    def begin(self, place: Place) -> None:
        """Keep how the file is before the run."""
        self._before = self._last = stamp(place.inside(self._checkpoint))

    def changed(self, place: Place) -> bool:
        """Whether the run has written to it."""
        now = stamp(place.inside(self._checkpoint))
        return bool(now) and now != self._before

    def whole(self, place: Place, folder: Path) -> bool:
        """Whether its first version was kept, or it was left alone for a while after it was written."""
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
        one, other = record.steps[0], resumed[rank].steps[0]
        pairs = [
            *zip(one.losses, other.losses, strict=False),
            *zip(one.checksum, other.checksum, strict=False),
        ]
        if not all(math.isclose(*pair, rel_tol=tolerance) for pair in pairs):
            return False
    return True
