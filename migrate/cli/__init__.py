"""The commands: arguments in, text and exit codes out.

The only code that prints or exits, one file a command. What a command needs is imported inside its
function, so that `migrate --help` answers at once.
"""

from __future__ import annotations

import signal

import click

from migrate.cli.check import check
from migrate.cli.doctor import doctor
from migrate.cli.parity import parity
from migrate.cli.prove import prove
from migrate.cli.rewrite import rewrite
from migrate.cli.run import run
from migrate.cli.weights import weights


def main() -> None:
    """Run the command line; the console script `migrate`."""
    # As Ctrl-C does: what was started is stopped, and temporary files are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commands(prog_name="migrate")


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from migrate.versions import versions

        for name, version in versions().items():
            click.echo(f"{name} {version or '(not installed)'}")
        context.exit()


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: migrate rewrite train.py && migrate prove train.py --replicas 2",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version of this program and of the frameworks.",
)
@click.option("--debug", is_flag=True, help="Show a traceback for an error.")
@click.pass_context
def commands(context: click.Context, debug: bool) -> None:
    """Move PyTorch DDP training and models from CUDA to TPUs, and prove that they compute the same."""
    context.obj = debug


for command in (rewrite, check, run, prove, weights, parity, doctor):
    commands.add_command(command)
