"""`migrate prove --against FOLDER`: a JAX program of `migrate train` beside its script."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors, keep_jax_on_cpu, show, show_json

# Options that such a proof has too.
_SHARED = ("script", "args", "steps", "timeout", "against", "json_output")
_UPDATES, _SECONDS = 5, 600.0


def prove_program(
    folder: Path,
    script: Path,
    args: tuple[str, ...],
    steps: int | None,
    timeout: float | None,
    json_output: bool,
) -> None:
    """Compare a program with its script, print the stages, and end with the exit code.

    Raises:
        click.UsageError: an option that belongs to rewrites was given.
    """
    context = click.get_current_context()
    for name in context.params:
        was_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if was_given and name not in _SHARED:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(
                f"{option} is for rewrites, but --against {folder} is a folder: leave the option out"
            )
    keep_jax_on_cpu()
    with errors():
        from converters.installing import require_installed
        from migrate.versions import NEEDS

        require_installed(*NEEDS["train"])
        from migrate.report.text.train import proof_as_json, proof_summary
        from migrate.train.against import prove_program as prove
        from migrate.train.options import TrainOptions

        options = TrainOptions(
            script, folder, args, updates=steps or _UPDATES, timeout=timeout or _SECONDS
        )
        with working(quiet=json_output) as progress:
            proof = prove(options, progress)
        show_json(proof_as_json(proof)) if json_output else show(*proof_summary(proof))
        sys.exit(FINE if proof.same else FINDINGS)
