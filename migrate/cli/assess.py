"""`migrate assess`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.grouping import SectionedCommand
from migrate.cli.options import WholeNumber, as_html, as_json, torchrun
from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json
from shims.activate import MOST_REPLICAS

if TYPE_CHECKING:
    from migrate.assess.money import TrainingPlan

_A_PATH = click.Path(path_type=Path)


@click.command(
    cls=SectionedCommand,
    sections={
        "Common options": ["--script", "--tpu", "--gpu", "--gpu-step-seconds", "--html"],
        "Training today": ["--gpus", "--steps", "--runs"],
        "Assumptions": [
            "--share-of-bound",
            "--host-step-seconds",
            "--batch",
            "--batch-option",
            "--engineer-hour",
            "--prices",
            "--hours",
        ],
        "Measurement on this machine": ["--replicas", "--torchrun", "--run-timeout", "--timeout"],
    },
    epilog="Example: migrate assess . --script train.py --gpu h100 --gpu-step-seconds 0.41 --steps 100000",
    short_help="Decide whether a move to TPUs is worth it, on one page.",
)
@click.argument("project", type=_A_PATH)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--script", required=True, type=_A_PATH, metavar="FILE", help="Training script in PROJECT."
)
@click.option(
    "--tpu",
    default="v5e-8,v6e-8",
    show_default=True,
    metavar="SLICES",
    help="TPU slices to consider, separated by commas; or all.",
)
@click.option("--gpu", default="", metavar="NAME", help="GPU that trains the model today: h100.")
@click.option(
    "--gpus", default=1, show_default=True, type=int, metavar="N", help="Number of GPUs today."
)
@click.option(
    "--gpu-step-seconds",
    type=float,
    metavar="SECONDS",
    help="Seconds per training step today, all GPUs together.",
)
@click.option("--steps", type=int, metavar="N", help="Optimizer steps in one training run.")
@click.option("--runs", type=int, metavar="N", help="Number of planned training runs.")
@click.option(
    "--engineer-hour", type=float, metavar="DOLLARS", help="Cost of one hour of an engineer."
)
@click.option(
    "--share-of-bound",
    default=0.4,
    show_default=True,
    metavar="SHARE",
    help="Assumed fraction of the step's lower bound that real runs reach.",
)
@click.option(
    "--host-step-seconds",
    type=float,
    metavar="SECONDS",
    help="Seconds of work on the host per step: input, tracing, launch. Default: measured on this machine.",
)
@click.option(
    "--batch",
    type=click.Choice(["grows", "same"]),
    default="grows",
    show_default=True,
    help="Global batch: grows with the number of replicas, or stays the same.",
)
@click.option(
    "--batch-option",
    default="",
    metavar="NAME",
    help="Option of the script that sets its batch size; find the largest batch that fits too.",
)
@torchrun
@click.option(
    "--prices",
    type=_A_PATH,
    metavar="FILE",
    help="YAML file of your prices, in the form of assess/prices.yaml.",
)
@click.option(
    "--hours",
    type=_A_PATH,
    metavar="FILE",
    help="YAML file of hours per kind of manual work, in the form of assess/hours.yaml.",
)
@click.option(
    "--replicas",
    default=2,
    show_default=True,
    type=WholeNumber(MOST_REPLICAS),
    metavar="N",
    help="Number of replicas in the short run.",
)
@click.option(
    "--run-timeout",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of the short run.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of each compilation.",
)
@as_html
@as_json
def assess(
    project: Path, args: tuple[str, ...], html: Path | None, json_output: bool, **arguments: Any
) -> None:
    """Combine effort, fit and cost of a move to TPUs into a decision on one page.

    PROJECT is a folder. Arguments after `--` go to the script. The project is rewritten in a copy, run for
    some steps on simulated replicas, and its training step is compiled for the slices.

    The page lists the manual work that remains, for torch_xla and for torch_tpu, the slices that the step
    fits on, the cost of a run there and today, and the number of runs after which the port pays off. The exit
    code is 1 if the advice is to stay on GPUs, or if there is none.
    """
    with errors():
        from migrate.assess.hours import SHIPPED as OUR_HOURS
        from migrate.assess.hours import read_hours
        from migrate.assess.pipeline import AssessQuestion
        from migrate.assess.pipeline import assess as assessed
        from migrate.assess.prices import SHIPPED as OUR_PRICES
        from migrate.assess.prices import read_prices
        from migrate.fit.products import products_named
        from migrate.report.html.page import check_page_target
        from migrate.report.text.assess import assess_as_json, assess_summary

        if html is not None:
            check_page_target(html)
        question = AssessQuestion(
            project,
            arguments["script"],
            args,
            tuple(products_named(arguments["tpu"])),
            arguments["replicas"],
            arguments["run_timeout"],
            arguments["timeout"],
            _plan(arguments),
            read_prices(arguments["prices"] or OUR_PRICES),
            read_hours(arguments["hours"] or OUR_HOURS),
            arguments["batch_option"],
            arguments["torchrun"],
        )
        with working(quiet=json_output) as progress:
            assessment = assessed(question, progress)
        if html is not None:
            from migrate.report.html.assess import write_assess_page

            write_assess_page(assessment, html)
        if json_output:
            show_json(assess_as_json(assessment))
        else:
            show(*assess_summary(assessment))
    worth = assessment.decision.state == "move" or (
        assessment.decision.state == "depends" and assessment.decision.break_even is not None
    )
    sys.exit(FINE if worth else FINDINGS)


def _plan(arguments: dict[str, Any]) -> TrainingPlan:
    from migrate.assess.money import TrainingPlan

    return TrainingPlan(
        arguments["gpu"],
        arguments["gpus"],
        arguments["gpu_step_seconds"],
        arguments["steps"],
        arguments["runs"],
        arguments["engineer_hour"],
        arguments["share_of_bound"],
        arguments["batch"],
        arguments["host_step_seconds"],
    )
