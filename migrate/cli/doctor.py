"""`migrate doctor`."""

from __future__ import annotations

import sys

import click

from migrate.cli.options import as_json, complete_path
from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json


@click.command(
    epilog="Example: migrate doctor --devices",
    short_help="List versions and devices, and which commands are ready.",
)
@click.argument("places", metavar="[URL]...", nargs=-1, shell_complete=complete_path)
@click.option(
    "--devices",
    is_flag=True,
    help="Run the same programs on every local chip, and compare the results bit for bit.",
)
@click.option(
    "--repeats",
    type=click.IntRange(2, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Repeats of each program with --devices; some faults are rare.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of --devices.",
)
@click.option("--plant", default="", hidden=True)
@as_json
def doctor(
    places: tuple[str, ...],
    devices: bool,
    repeats: int,
    timeout: float,
    plant: str,
    json_output: bool,
) -> None:
    """Check versions, devices and environment variables, and list which commands are ready.

    URL is a checkpoint or folder, such as gs://bucket/run or org/name. The check says whether this machine
    can reach it, and whether a bucket lies in the region of this machine.

    The exit code is 1 if something would fail. Each line says what to do.
    """
    from migrate.doctor import diagnose
    from migrate.report.text.doctor import (
        devices_as_json,
        devices_summary,
        diagnosis_as_json,
        diagnosis_summary,
    )

    report = None
    with errors(), working(quiet=json_output) as progress:
        from migrate.devices.examine import examine, probe_options

        options = probe_options(repeats=repeats, seconds=timeout, fault=plant)
        diagnosis = diagnose(progress=progress, places=places)
        if devices:
            report = examine(options, progress=progress)
    chips_sound = report is None or report.sound
    if json_output:
        values = diagnosis_as_json(diagnosis) | {"fit": diagnosis.fit and chips_sound}
        show_json(values if report is None else values | {"devices": devices_as_json(report)})
    else:
        show(*diagnosis_summary(diagnosis))
        if report is not None:
            show(*devices_summary(report))
    sys.exit(FINE if diagnosis.sound and chips_sound else FINDINGS)
