"""`migrate launch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from migrate.cli.grouping import SectionedCommand
from migrate.cli.options import as_json, complete_path, force
from migrate.cli.progress import working
from migrate.cli.show import FINE, errors, show, show_json

_LAUNCHERS = ("skypilot", "gke", "xpk", "gcloud", "jobman", "dstack")


@click.command(
    cls=SectionedCommand,
    sections={
        "Common options": ["--tpu", "--zone", "--with", "--bucket", "--output"],
        "Slice": ["--spot", "--trc", "--hosts", "--new-zone"],
        "Program": ["--entry", "--data", "--env", "--no-resume"],
        "Launcher": ["--name", "--project", "--cluster", "--restarts", "--patience"],
        "Regions": ["--bucket-region", "--data-region"],
        "Result": ["--check", "--python", "--explain", "--force"],
    },
    epilog="Example: migrate launch train_xla.py --tpu v5e-16 --zone us-central1-a --spot --with gcloud "
    "--bucket gs://lab/run-1 -o job -- --run '{checkpoints}'",
    short_help="Write a job for a TPU slice: start script, set-up, resuming.",
)
@click.argument("target", shell_complete=complete_path)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("--tpu", required=True, metavar="SLICE", help="TPU slice, such as v5e-16 or v6e-64.")
@click.option("--zone", metavar="ZONE", help="Zone of the slice, such as us-central1-a.")
@click.option(
    "--with",
    "launcher",
    required=True,
    type=click.Choice(_LAUNCHERS),
    help="Program that creates the slice and runs the job.",
)
@click.option(
    "--bucket",
    metavar="URL",
    help="Folder in a bucket for checkpoints, compilation cache and logs: gs://lab/run-1.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of the job.",
)
@click.option("--spot", is_flag=True, help="Use a spot slice, which may be taken away at any time.")
@click.option(
    "--trc",
    is_flag=True,
    help="Require a usual grant of the TPU Research Cloud; it sets zone and --spot.",
)
@click.option(
    "--hosts", type=click.IntRange(min=1), metavar="N", help="Number of hosts that you expect."
)
@click.option("--new-zone", is_flag=True, help="Accept a zone that the table does not list.")
@click.option("--entry", metavar="FILE", help="File of the program's folder that is run.")
@click.option("--data", metavar="URL", help="Folder in a bucket with the data.")
@click.option(
    "--env",
    "environment",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment variable of the program; repeatable.",
)
@click.option(
    "--no-resume", is_flag=True, help="Accept a program that starts over after a preemption."
)
@click.option("--name", metavar="NAME", help="Name of the job. Default: the program's name.")
@click.option("--project", metavar="ID", help="Project of Google Cloud. Default: gcloud's.")
@click.option("--cluster", metavar="NAME", help="GKE cluster, for xpk.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Restarts of all hosts on GKE and with xpk.",
)
@click.option(
    "--patience",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for all hosts to join.",
)
@click.option(
    "--bucket-region", metavar="REGION", help="Location of --bucket. Default: the slice's region."
)
@click.option(
    "--data-region", metavar="REGION", help="Location of --data. Default: the slice's region."
)
@click.option(
    "--check", is_flag=True, help="Check the job with the launcher's own parser, offline."
)
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter that has the launcher's package, for --check.",
)
@click.option("--explain", is_flag=True, help="Print the meaning of each line of the job.")
@force
@as_json
def launch(
    target: str,
    args: tuple[str, ...],
    check: bool,
    python: str | None,
    explain: bool,
    no_resume: bool,
    json_output: bool,
    **arguments: Any,
) -> None:
    """Write the files of a training job on a TPU slice. Nothing is started in a cloud.

    TARGET is a torch_xla, torch_tpu, shims or JAX script, or the folder of a program. Arguments after `--` go
    to the program; {checkpoints} and {data} in them stand for folders in the bucket.

    The job checks each host and its chips before training, waits for all hosts, resumes after a preemption,
    and keeps a compilation cache. Its README.md has the commands to create, watch, resume, stop and clean.
    """
    with errors():
        from migrate.launch.pipeline import launch as write_job
        from migrate.launch.request import LaunchRequest
        from migrate.report.text.launch import launch_as_json, launch_summary

        request = LaunchRequest(Path(target), args=args, resumes=not no_resume, **arguments)
        with working(quiet=json_output) as progress:
            written = write_job(request, check=check, python=python, progress=progress)
    if json_output:
        show_json(launch_as_json(written, explain))
    else:
        show(*launch_summary(written, explain))
    sys.exit(FINE)
