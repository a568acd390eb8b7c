"""`migrate assess`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.options import as_json
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json, working_at_files
from shims.activate import MOST_REPLICAS

if TYPE_CHECKING:
    from migrate.assess.money import Plan

_A_PATH = click.Path(path_type=Path)


@click.command(
    epilog="Example: migrate assess . --script train.py --gpu h100 --gpu-step-seconds 0.41 --steps 100000",
    short_help="Is moving it to a TPU worth it? The decision on one page.",
)
@click.argument("project", type=_A_PATH)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--script", required=True, type=_A_PATH, help="The one that trains, in PROJECT.")
@click.option(
    "--tpu", default="v5e-8,v6e-8", show_default=True, help="Slices, with commas; or all."
)
@click.option("--gpu", default="", metavar="NAME", help="What it is trained on today: h100.")
@click.option("--gpus", default=1, show_default=True, type=int, help="How many of them.")
@click.option("--gpu-step-seconds", type=float, help="That a step takes on all of them together.")
@click.option("--steps", type=int, help="Of a run today.")
@click.option("--runs", type=int, help="That are planned.")
@click.option("--engineer-hour", type=float, help="Dollars for an hour of an engineer.")
@click.option(
    "--share-of-bound",
    default=0.4,
    show_default=True,
    help="Of the least time of a step: what real runs are assumed to reach.",
)
@click.option(
    "--host-step-seconds",
    type=float,
    help="The host's part of a step: input, tracing, start of the program. By default measured here.",
)
@click.option(
    "--batch",
    type=click.Choice(["grows", "same"]),
    default="grows",
    show_default=True,
    help="Of all replicas together: grows with their number, or stays the same.",
)
@click.option(
    "--batch-option",
    default="",
    metavar="NAME",
    help="The script's option that is its batch: look for the largest that fits too.",
)
@click.option("--torchrun", is_flag=True, help="Give the script torchrun's variables (RANK, …).")
@click.option("--prices", type=_A_PATH, help="Your own prices, a file as prices.yaml of ours.")
@click.option("--hours", type=_A_PATH, help="Your own hours of work, a file as hours.yaml of ours.")
@click.option(
    "--replicas", default=2, show_default=True, type=click.IntRange(1, MOST_REPLICAS),
    help="Of the short run.",
)  # fmt: skip
@click.option(
    "--run-timeout",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    help="Seconds for the short run.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    help="Seconds for each compile.",
)
@click.option("--html", type=_A_PATH, help="Write it as a page too.")
@as_json
def assess(
    project: Path, args: tuple[str, ...], html: Path | None, json_output: bool, **given: Any
) -> None:
    """Put together what the tools say of a project, with what runs cost, to a decision on one page.

    PROJECT is a folder; what follows `--` goes to the script. It is rewritten in a mirror of the folders,
    run for some steps on simulated replicas, and its step compiled for the slices: what is left by hand,
    where it fits, what a run costs there at best and by an assumed share of that, what it costs today, after
    how many runs the port pays. Exit code 1 where it says to stay on the GPU, or cannot say.
    """
    with errors():
        from migrate.assess.hours import SHIPPED as OUR_HOURS
        from migrate.assess.hours import read_hours
        from migrate.assess.prices import SHIPPED as OUR_PRICES
        from migrate.assess.prices import read_prices
        from migrate.assess.story import Question
        from migrate.assess.story import assess as assessed
        from migrate.fit.products import products_named
        from migrate.report.html.page import check_page_target
        from migrate.report.text.assess import assess_as_json, assess_summary

        if html is not None:
            check_page_target(html)
        question = Question(
            project,
            given["script"],
            args,
            tuple(products_named(given["tpu"])),
            given["replicas"],
            given["run_timeout"],
            given["timeout"],
            _plan(given),
            read_prices(given["prices"] or OUR_PRICES),
            read_hours(given["hours"] or OUR_HOURS),
            given["batch_option"],
            given["torchrun"],
        )
        with working_at_files(quiet=json_output) as progress:
            found = assessed(question, progress)
        if html is not None:
            from migrate.report.html.assess import write_assess_page

            write_assess_page(found, html)
        if json_output:
            show_json(assess_as_json(found))
        else:
            show(*assess_summary(found))
    worth = found.decision.state == "move" or (
        found.decision.state == "depends" and found.decision.break_even is not None
    )
    sys.exit(FINE if worth else FINDINGS)


def _plan(given: dict[str, Any]) -> Plan:
    from migrate.assess.money import Plan

    return Plan(
        given["gpu"],
        given["gpus"],
        given["gpu_step_seconds"],
        given["steps"],
        given["runs"],
        given["engineer_hour"],
        given["share_of_bound"],
        given["batch"],
        given["host_step_seconds"],
    )
