"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from migrate.catalogue.target import TARGETS
from migrate.rewrite.options import DEFAULT, STYLES
from shims.activate import MOST_REPLICAS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from migrate.catalogue.target import Target
    from migrate.check.config import Config

Command = Callable[..., None]


class WholeNumber(click.IntRange):
    """A whole number from 1, up to a limit if there is one."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(1, limit)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number, or report the numbers that are permitted."""
        try:
            number = int(str(value))
        except ValueError:
            number = 0
        if number < 1 or (self.max is not None and number > self.max):
            end = "" if self.max is None else f" to {self.max:g}"
            self.fail(f"{value} is not a whole number from 1{end}.", param, ctx)
        return number


def takes_a_script(command: Command) -> Command:
    """Add what the commands that run a script share: the script, its arguments, replicas, time limit."""
    a_path = click.Path(path_type=Path)
    replicas = WholeNumber(MOST_REPLICAS)
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


target = click.option(
    "--target",
    type=click.Choice(TARGETS),
    help="Package that drives the TPU. Default: target of [tool.migrate], or torch_xla.",
)


def complete_path(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell complete a path where an argument may also name something else."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def takes_the_form(command: Command) -> Command:
    """Add the options that become `migrate.rewrite.options.RewriteOptions`."""
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
        target,
    ):
        command = decorate(command)
    return command


def configuration(
    path: Path,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: str | None = None,
    target: Target | None = None,
) -> Config:
    """Return the configuration of a file or folder, with what the command line says.

    Raises:
        BadConfigError: a key, code or severity that does not exist.
    """
    from migrate.check.config import find_config
    from migrate.check.hazard import Severity
    from migrate.rewrite.left.codes import all_codes

    config = find_config(path, all_codes()).narrowed(select, ignore, all_codes())
    if fail_on is not None:
        config = replace(config, fails_on=Severity(fail_on))
    return config if target is None else replace(config, target=target)
