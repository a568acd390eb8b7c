"""Record a run of an original on this machine, for a proof on another one: `migrate prove --record`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from migrate import __version__
from migrate.progress import Progress, no_progress
from migrate.prove.compare.gates import NOISE_RUNS
from migrate.prove.compare.noise_floor import NoiseFloor, noise_floor
from migrate.prove.errors import RecordingError, RunTimeoutError, ScriptFailedError
from migrate.prove.proof import RecordedRun, Runs, multiplied_in
from migrate.prove.recording.machine import read_machines
from migrate.prove.reference import file, gpus, sources
from migrate.prove.reference.file import Reference
from migrate.prove.settings import SEED, Settings
from shims import choice

# The settings that decide what a script computes.
KEPT = ("deterministic", "amp", "steps", "start")


def record(
    script: Path,
    args: Sequence[str],
    path: Path,
    *,
    replicas: int | None = None,
    settings: Settings,
    progress: Progress = no_progress,
) -> tuple[Reference, int]:
    """Run an original on this machine, measure its noise by running it again, and write both.

    Args:
        script: the original, which runs on the GPUs of this machine, or without any on the CPU with gloo.
        args: its arguments.
        path: path of the file to write.
        replicas: number of ranks; None: one for each GPU, or two on the CPU.
        settings: changes of the script, and the number of steps.
        progress: called with a few words on what is running.

    Returns:
        The written reference, and the number of optimizer steps of its ranks.

    Raises:
        LaunchError: there are more ranks than GPUs.
        OriginalFailedError, RunTimeoutError, RecordingError: as in `migrate.prove.proof.prove`.
        ReferenceFileError: the file cannot be written.
    """
    file.require_place(path)
    on, count = gpus.where()
    ranks = count if replicas is None else replicas
    choice.require_devices(on, ranks)
    settings = replace(settings, on=on, reference=True)
    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:
        runs = Runs(Path(folder), script, script, args, ranks, settings)
        total = 1 + NOISE_RUNS + (on == "cuda")
        place = f"{ranks} {'GPUs' if on == 'cuda' else 'gloo ranks on the CPU'}"
        runs.telling(progress, f"run 1 of {total}: {script.name} on {place}")
        first = runs.record("original")
        if not any(record.steps for record in first.ranks.values()):
            raise RecordingError(
                f"{script} made no optimizer step: there is nothing to record",
                "pass arguments that let it train",
            )
        steps = max(len(record.steps) for record in first.ranks.values())
        machines = read_machines(first.folder)
        floors: list[NoiseFloor] = []
        measured: list[str] = []
        notes = list(first.notes)
        exact = any(machine.tf32 for machine in machines.values())
        plans = list(_plans(first, settings, exact=exact))
        for number, (how, reordered, others) in enumerate(plans, 2):
            message = f"run {number} of {total}: again, {how}, to measure its noise"
            runs.telling(progress, message, steps)
            try:
                again = runs.record("original", reordered=reordered, settings=others)
            except (ScriptFailedError, RunTimeoutError) as error:
                reason = getattr(error, "reason", "") or error.what
                notes.append(f"a run of the original that measures its noise failed ({reason})")
                continue
            floors.append(noise_floor(first.ranks, again.ranks))
            measured.append(how)
        reference = Reference(
            made_by=__version__,
            script=script.name,
            sources=sources.digests(script),
            args=tuple(args),
            replicas=ranks,
            settings={name: getattr(settings, name) for name in KEPT},
            seed=SEED,
            seconds=first.seconds,
            machines=machines,
            floors=tuple(floors),
            measured=tuple(measured),
            notes=tuple(notes),
        )
        file.write(path, reference, first.folder)
        return reference, sum(len(record.steps) for record in first.ranks.values())


def _plans(
    first: RecordedRun, settings: Settings, *, exact: bool
) -> Iterator[tuple[str, bool, Settings]]:
    """Plan the runs that measure the noise of the first: their names, whether they round differently,
    settings.
    """
    if settings.on == "cuda":
        # Differences of its own kernels between runs.
        yield "as it is", False, settings
    how = "with other rounding"
    if "bfloat16" in multiplied_in(first.ranks, settings):
        # In 16 bits another order of the sums is lost in the rounding of the results.
        settings = replace(settings, amp="off", half=True)
        how += " and without autocast"
    if exact:
        settings = replace(settings, tf32=False)
        how += " and without TF32"
    for _ in range(NOISE_RUNS):
        yield how, True, settings
