"""Compare a rewrite with an original that was recorded on another machine: `migrate prove --against`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from migrate.catalogue.target import XLA, Target
from migrate.progress import Progress, no_progress
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.errors import RecordingError, ReferenceFileError, ReplicasPartedError
from migrate.prove.proof import Proof, RecordedRun, Runs, compared
from migrate.prove.recording import records
from migrate.prove.recording.records import RankRecord
from migrate.prove.reference import file, sources
from migrate.prove.reference.file import Reference
from migrate.prove.reference.words import beginning, notes
from migrate.prove.settings import SEED, Settings


@dataclass(frozen=True)
class LoadedRun:
    """Run from a record, with the interface of `migrate.prove.proof.ComparedRun`."""

    ranks: dict[int, RankRecord]
    seconds: float
    notes: tuple[str, ...]
    parted: str = ""


def read_for(
    path: Path, run: Path, script: Path, args: Sequence[str], asked: Mapping[str, Any]
) -> Reference:
    """Read a record, and check that it is of this script with these arguments.

    Args:
        path: path of the file.
        run: an empty folder, for its recording.
        script: the original.
        args: its arguments; empty: those of the record.
        asked: settings and "replicas" from the user; others are the record's.

    Raises:
        ReferenceFileError: the record cannot be read, or is of another script, other arguments or settings.
    """
    reference = file.read(path, run)
    if other := sources.changed(reference.sources, reference.script, script):
        which = f"{script.parent / other[0]} is not as it was"
        if other[0] == script.name and script.name != reference.script:
            which = f"{script} is not the {reference.script} that ran"
        raise ReferenceFileError(
            f"{which} when {path} was recorded",
            "check out the recorded version, or record this version",
        )
    if args and tuple(args) != reference.args:
        raise ReferenceFileError(
            f"{path} was recorded with arguments {_shown_args(reference.args)}, not with {_shown_args(args)}",
            "use the recorded arguments, or record it again",
        )
    known = {**reference.settings, "replicas": reference.replicas}
    for name, value in asked.items():
        if value != known[name]:
            raise ReferenceFileError(
                f"{path} was recorded with --{name} {_shown(known[name])}, not {_shown(value)}",
                "leave the option out, or record it again with this value",
            )
    if reference.seed != SEED:
        raise ReferenceFileError(
            f"{path} was recorded with the seed {reference.seed} because the script sets none; this "
            f"version uses {SEED}",
            "record it again with this version",
        )
    return reference


def prove_against(
    path: Path,
    script: Path,
    rewritten: Path,
    args: Sequence[str] = (),
    *,
    asked: Mapping[str, Any],
    timeout: float | None = None,
    progress: Progress = no_progress,
    target: Target = XLA,
) -> Proof:
    """Run the rewrite on XLA or torch_tpu, and compare its steps with those of the recorded original.

    Args:
        path: path of the record.
        script: the original, which is not run.
        rewritten: its rewrite.
        args: their arguments; empty: those of the record.
        asked: as in `read_for`.
        timeout: seconds for the run.
        progress: called with a few words on what is running.
        target: package that drives the TPU in the rewrite.

    Raises:
        ReferenceFileError: as in `read_for`.
        RewriteFailedError, RunTimeoutError, RecordingError: as in `migrate.prove.proof.prove`.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:
        run = Path(folder) / "reference"
        run.mkdir()
        reference = read_for(path, run, script, args, asked)
        settings = Settings(**reference.settings, timeout=timeout)
        replicas = reference.replicas
        runs = Runs(Path(folder), script, rewritten, reference.args, replicas, settings, target)
        all_notes = (*notes(reference), *reference.notes)
        original = LoadedRun(records.read(run), reference.seconds, all_notes)
        steps = max((len(record.steps) for record in original.ranks.values()), default=0)
        message = f"compiling and running the rewrite on {replicas} {runs.runtime.replicas}"
        runs.telling(progress, message, steps)
        try:
            ours = runs.record(runs.runtime.side)
        except ReplicasPartedError as error:
            return runs.without_steps(ProofVerdict.PARTED, error.where, original)
        progress(f"comparing it with {path.name}")
        proof = compared(original, ours, runs, _never, progress, reference.floors)
    return replace(proof, message=beginning(reference) + proof.message)


def _never(settings: Settings) -> RecordedRun:
    raise RecordingError("the original cannot be run again on this machine", "record it again")


def _shown_args(args: Sequence[str]) -> str:
    return repr(" ".join(args)) if args else "none"


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
