"""The commands: arguments in, text and exit codes out.

The only code that prints or exits, one file a command. What a command needs is imported inside its
function, so that `migrate --help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

from migrate.cli.assess import assess
from migrate.cli.check import check
from migrate.cli.completion import completion
from migrate.cli.doctor import doctor
from migrate.cli.fit import fit
from migrate.cli.grouping import SectionedGroup
from migrate.cli.launch import launch
from migrate.cli.parity import parity
from migrate.cli.port import port
from migrate.cli.prove import prove
from migrate.cli.rewrite import rewrite
from migrate.cli.run import run
from migrate.cli.show import COULD_NOT
from migrate.cli.streams import ReaderGoneError, guard_streams
from migrate.cli.train import train
from migrate.cli.weights import weights
from migrate.cli.words import unknown_option_message, usual_message
from shims.activate import import_quickly


class _Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, what was started is stopped and temporary files are removed."""


# Commands that run a model of the user's and write what it did.
_SAME_BYTES = ("port", "train")
# Commands whose process only reads and writes code.
_ON_CODE = ("check", "rewrite")


def main() -> None:
    """Run the command line; the console script `migrate`."""
    _fix_hashes()
    signal.signal(signal.SIGTERM, _terminate)
    guard_streams()
    import_quickly("torch", "torch_xla", "jax", "flax", "transformers")
    if any(word in _ON_CODE for word in sys.argv[1:2]):
        from migrate.syntax.interpreter import collect_seldom

        collect_seldom()
    commands(prog_name="migrate")


def _fix_hashes() -> None:
    """Start the command again with a fixed PYTHONHASHSEED, where the user has set none.

    A model that goes over a set of names (Gemma 3 of transformers) is recorded in the order of their hashes.
    """
    if "PYTHONHASHSEED" not in os.environ and any(word in _SAME_BYTES for word in sys.argv[1:2]):
        environment = {**os.environ, "PYTHONHASHSEED": "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _terminate(*_: object) -> NoReturn:
    raise _Terminated


class _Commands(SectionedGroup):
    """A group that ends as the shell and this program's users expect: one line, and a code that says why."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run a command and exit: 2 for a wrong command line, 128 + n where signal n ended it."""
        try:
            code = self._code(args, options)
        except ReaderGoneError:
            code = 128 + signal.SIGPIPE
        sys.exit(code)

    def _code(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        words = options.get("args") or (args[0] if args else None) or sys.argv[1:]
        try:
            return super().main(*args, **options | {"standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as nothing:
            click.echo(nothing.format_message(), err=True)
        except click.NoSuchOption as error:
            click.echo(f"migrate: {unknown_option_message(error, words)}", err=True)
        except click.ClickException as error:
            click.echo(f"migrate: {usual_message(error)}", err=True)
        except click.Abort as abort:
            by = signal.SIGTERM if isinstance(abort.__cause__, _Terminated) else signal.SIGINT
            return 128 + by
        return COULD_NOT


def _print_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from migrate.versions import versions

        for name, version in versions().items():
            click.echo(f"{name} {version or '(not installed)'}")
        context.exit()


@click.group(
    cls=_Commands,
    tasks={
        "Move a script": ["rewrite", "check", "run", "prove"],
        "Move a model": ["weights", "port", "train", "parity"],
        "Plan": ["fit", "assess"],
        "Run on a TPU slice": ["launch"],
        "Environment": ["doctor", "completion"],
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: migrate rewrite train.py && migrate prove train.py --replicas 2",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the versions of this program and of the frameworks.",
)
@click.option("--debug", is_flag=True, help="Show a traceback for an error.")
@click.pass_context
def commands(context: click.Context, debug: bool) -> None:
    """Move PyTorch DDP training and models from CUDA to TPUs, and prove that they compute the same."""
    context.obj = debug


def _debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Set what `migrate --debug COMMAND` sets, for `migrate COMMAND --debug`."""
    if value:
        context.find_root().obj = True


for command in (
    rewrite,
    check,
    run,
    prove,
    weights,
    port,
    train,
    parity,
    fit,
    assess,
    launch,
    doctor,
    completion,
):
    command.params.append(
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=_debug,
            help="Show a traceback for an error.",
        )
    )
    commands.add_command(command)
