"""`migrate prove --record` and `--against`: an original that trains on another machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from migrate.cli.progress import working
from migrate.cli.show import FINE, show, show_json
from migrate.progress import Progress
from migrate.prove.settings import Settings

if TYPE_CHECKING:
    from migrate.catalogue.target import Target
    from migrate.prove.proof import Proof

# The options that a record has settled.
_SETTLED = ("replicas", "deterministic", "amp", "steps", "start")


def require_one_way(
    record: Path | None,
    against: Path | None,
    from_checkpoint: Path | None,
    rewritten: Path | None,
    html: Path | None,
) -> None:
    """Refuse options that do not go together.

    Raises:
        click.UsageError: names them.
    """
    if record is not None and against is not None:
        raise click.UsageError(
            "--record and --against cannot be combined: record on the machine with the GPUs, "
            "compare in another run"
        )
    for name, value in (("--record", record), ("--against", against)):
        if value is not None and from_checkpoint is not None:
            raise click.UsageError(f"{name} and --from-checkpoint cannot be combined")
    if record is not None and (rewritten is not None or html is not None):
        other = "--rewritten" if rewritten is not None else "--html"
        raise click.UsageError(f"--record runs only the original: use {other} with --against")


def record(
    script: Path, args: tuple[str, ...], path: Path, settings: Settings, json_output: bool
) -> None:
    """Record the original, say what was written, and end with exit code 0."""
    from migrate.prove.reference import words
    from migrate.prove.reference.record import record as record_reference

    asked = _given_options()
    with working(quiet=json_output) as progress:
        reference, steps = record_reference(
            script, args, path, replicas=asked.get("replicas"), settings=settings, progress=progress
        )
    measured = words.noise(reference)
    if json_output:
        show_json(
            {
                "record": str(path),
                "script": str(script),
                "args": list(args),
                "replicas": reference.replicas,
                "steps": steps,
                "devices": words.devices(reference),
                "modes": list(words.modes(reference)),
                "noise": measured or None,
                "notes": list(reference.notes),
            }
        )
    else:
        for note in reference.notes:
            show(f"note: {note}")
        if measured:
            show(f"noise of the original on this machine: up to {measured}")
        show(
            f"recorded: {steps} steps on {words.devices(reference)}, in {path}; "
            f"elsewhere: migrate prove {script} --against {path.name}"
        )
    sys.exit(FINE)


def require_reference(path: Path, script: Path, args: tuple[str, ...]) -> None:
    """See that a record is one of this script, with what the command line says.

    Raises:
        ReferenceFileError: it is not.
    """
    from migrate.prove.reference.against import read_for

    with tempfile.TemporaryDirectory(prefix="migrate-prove-") as folder:
        read_for(path, Path(folder), script, args, _given_options())


def prove_against(
    path: Path,
    script: Path,
    rewritten: Path,
    args: tuple[str, ...],
    timeout: float | None,
    progress: Progress,
    target: Target,
) -> Proof:
    """The proof of the rewrite against the record."""
    from migrate.prove.reference import against

    return against.prove_against(
        path,
        script,
        rewritten,
        args,
        asked=_given_options(),
        timeout=timeout,
        progress=progress,
        target=target,
    )


def _given_options() -> dict[str, Any]:
    """Return the options of the command line that a record also sets."""
    context = click.get_current_context()
    return {
        name: context.params[name]
        for name in _SETTLED
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
