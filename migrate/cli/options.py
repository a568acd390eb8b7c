"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from migrate.rewrite.options import DEFAULT, STYLES, TARGETS
from shims.activate import MOST_REPLICAS

Command = Callable[..., None]


def takes_a_script(command: Command) -> Command:
    """Add what the commands that run a script share: the script, its arguments, replicas, time limit."""
    a_path = click.Path(path_type=Path)
    replicas = click.IntRange(1, MOST_REPLICAS)
    for decorate in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=1),
            help="Seconds for each run. Default: until it makes no step and prints nothing for an hour.",
        ),
        click.option(
            "--replicas", default=2, show_default=True, type=replicas, help="Ranks of a run."
        ),
        click.argument("args", nargs=-1, type=click.UNPROCESSED),
        click.argument("script", type=a_path),
    ):
        command = decorate(command)
    return command


as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON for machines.")


def takes_the_form(command: Command) -> Command:
    """Add the options that become `migrate.rewrite.options.Options`."""
    for decorate in (
        click.option(
            "--defer-reads",
            is_flag=True,
            help="Read logged values from the device once for each print, not once for each step.",
        ),
        click.option(
            "--style",
            type=click.Choice(STYLES),
            default=DEFAULT.style,
            show_default=True,
            help="portable: written against shims, one source for CUDA, CPU and TPU.",
        ),
        click.option(
            "--target",
            type=click.Choice(TARGETS),
            default=DEFAULT.target,
            show_default=True,
            help="What drives the TPU.",
        ),
    ):
        command = decorate(command)
    return command
