"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from migrate.rewrite.options import DEFAULT, STYLES, TARGETS
from shims.activate import MOST_REPLICAS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from migrate.check.config import Config

Command = Callable[..., None]


def takes_a_script(command: Command) -> Command:
    """Add what the commands that run a script share: the script, its arguments, replicas, time limit."""
    a_path = click.Path(path_type=Path)
    replicas = click.IntRange(1, MOST_REPLICAS)
    for decorate in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=1),
            metavar="SECONDS",
            help="Time limit of each run. Default: end a run that makes no step and prints nothing for an "
            "hour.",
        ),
        click.option(
            "--replicas",
            default=2,
            show_default=True,
            type=replicas,
            metavar="N",
            help="Number of ranks in a run.",
        ),
        click.argument("args", nargs=-1, type=click.UNPROCESSED),
        click.argument("script", type=a_path),
    ):
        command = decorate(command)
    return command


as_html = click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report as an HTML page too.",
)
as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON instead of text.")
force = click.option("--force", is_flag=True, help="Overwrite existing output.")
torchrun = click.option(
    "--torchrun", is_flag=True, help="Set the variables of torchrun (RANK, …) for the script."
)
fail_on = click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info"]),
    help="Lowest severity that sets exit code 1. Default: fail-on of [tool.migrate], or error.",
)


def complete_path(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete a path where an argument may also name something else."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def takes_the_form(command: Command) -> Command:
    """Add the options that become `migrate.rewrite.options.Options`."""
    for decorate in (
        click.option(
            "--defer-reads",
            is_flag=True,
            help="Read logged values from the device once per print, not once per step.",
        ),
        click.option(
            "--style",
            type=click.Choice(STYLES),
            default=DEFAULT.style,
            show_default=True,
            help="Output code: native calls torch_xla; portable calls shims and runs on CUDA, CPU and TPU.",
        ),
        click.option(
            "--target",
            type=click.Choice(TARGETS),
            default=DEFAULT.target,
            show_default=True,
            help="Runtime that drives the TPU.",
        ),
    ):
        command = decorate(command)
    return command


def configuration(
    path: Path, select: Sequence[str] = (), ignore: Sequence[str] = (), fail_on: str | None = None
) -> Config:
    """Return the configuration of a file or folder, with what the command line says.

    Raises:
        BadConfigError: a key, code or severity that does not exist.
    """
    from migrate.check.config import find_config
    from migrate.check.hazard import Severity
    from migrate.rewrite.left.codes import all_codes

    config = find_config(path, all_codes()).narrowed(select, ignore, all_codes())
    return config if fail_on is None else replace(config, fails_on=Severity(fail_on))
