"""`migrate run`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from migrate.cli.options import as_json, takes_a_script
from migrate.cli.show import FINDINGS, errors, show_json


@click.command(
    epilog="Example: migrate run train_xla.py --replicas 2 -- --epochs 1",
    short_help="Run a script on a TPU, or on simulated replicas.",
)
@takes_a_script
@as_json
def run(
    script: Path, args: tuple[str, ...], replicas: int, timeout: float | None, json_output: bool
) -> None:
    """Run a torch_xla script on a TPU where there is one, else on N replicas simulated on the CPU.

    Each replica is a process with real torch_xla on XLA:CPU; collectives run over gloo. What follows
    `--` goes to the script. Exit code 1 if the script fails. With --json, what the script prints goes to
    stderr.
    """
    with errors():
        from migrate.prove.run import run_script

        result = run_script(
            script,
            args,
            side="xla",
            replicas=replicas,
            timeout=timeout,
            output="stderr" if json_output else "inherit",
        )
    if json_output:
        show_json(
            {"script": str(script), "returncode": result.returncode, "seconds": result.seconds}
        )
    if result.returncode != 0:
        click.echo(f"migrate: {script} ended with exit code {result.returncode}", err=True)
        sys.exit(FINDINGS)
