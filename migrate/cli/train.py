"""`migrate train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from migrate.cli.grouping import ScriptCommand
from migrate.cli.options import WholeNumber, as_json, complete_path
from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors, keep_jax_on_cpu, show, show_json

_A_PATH = click.Path(path_type=Path)


@click.command(
    cls=ScriptCommand,
    sections={
        "Common options": ["--output", "--updates", "--force", "--no-proof", "--timeout"],
        "Program": ["--global-mean", "--scores", "--batch-names"],
    },
    epilog="Example: migrate train train.py -o jax_program -- --batch_size 8",
    short_help="Write a training script as a JAX program, and compare the two.",
)
@click.argument("script", type=_A_PATH, shell_complete=complete_path)
@click.option(
    "-o", "--output", type=_A_PATH, metavar="FOLDER", required=True, help="Folder of the program."
)
@click.option(
    "--force",
    count=True,
    help="Overwrite an earlier program. Given twice: overwrite your edits too.",
)
@click.option(
    "--updates",
    type=WholeNumber(),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of updates of the weights to record and to compare. A learning rate that follows no known "
    "schedule needs all of them.",
)
@click.option(
    "--scores",
    default="",
    metavar="NAME",
    help="Variable of the script with the scores of a rollout (PPO), as FUNCTION:NAME. rollout() of "
    "interface.py returns it.",
)
@click.option(
    "--batch-names",
    default="",
    metavar="NAMES",
    help="Variables of a micro-batch, comma-separated, each as NAME or FUNCTION:NAME. batches() of "
    "interface.py gives it by these names.",
)
@click.option(
    "--global-mean",
    is_flag=True,
    help="Take the mean over all counted elements of an update's micro-batches. Without it, the program adds "
    "the micro-batches' means, as the script does.",
)
@click.option("--no-proof", is_flag=True, help="Skip the comparison with the script.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one run.",
)
@as_json
def train(no_proof: bool, json_output: bool, **arguments: Any) -> None:
    """Write a PyTorch training script as a JAX program: model, loss, optimizer, data, loop and a proof.

    SCRIPT runs on the CPU for N updates. Its arguments go after --. The program has the weights that the
    script starts from, and the script's own batches. The folder OUTPUT is written completely or not at all.

    The exit code is 1 if the program and the script differ. It is 2 if a part of the training cannot be
    written; the message then names its line.
    """
    keep_jax_on_cpu()
    with errors():
        from converters.installing import require_installed
        from migrate.report.text.train import train_as_json, train_summary
        from migrate.versions import NEEDS

        require_installed(*NEEDS["train"], extra="port")
        from migrate.train.options import TrainOptions
        from migrate.train.pipeline import train_program

        command = shlex.join(["migrate", "train", *_words(arguments)])
        with working(quiet=json_output) as progress:
            done = train_program(TrainOptions(proof=not no_proof, **arguments), command, progress)
        show_json(train_as_json(done)) if json_output else show(*train_summary(done))
        sys.exit(FINE if done.same else FINDINGS)


def _words(arguments: dict[str, Any]) -> list[str]:
    """The options that decide what is written, as they were given."""
    words = [str(arguments["script"]), "-o", str(arguments["output"])]
    words += ["--updates", str(arguments["updates"])] if arguments["updates"] != 5 else []
    words += ["--global-mean"] if arguments["global_mean"] else []
    words += ["--scores", arguments["scores"]] if arguments["scores"] else []
    words += ["--batch-names", arguments["batch_names"]] if arguments["batch_names"] else []
    return [*words, "--", *arguments["args"]] if arguments["args"] else words
