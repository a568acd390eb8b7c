"""`migrate doctor`."""

from __future__ import annotations

import sys

import click

from migrate.cli.options import as_json
from migrate.cli.show import FINDINGS, FINE, errors, show, show_json, working


@click.command(
    epilog="Example: migrate doctor --devices",
    short_help="Check versions, devices, environment.",
)
@click.argument("places", nargs=-1)
@click.option(
    "--devices",
    is_flag=True,
    help="Run the same programs on every local chip, repeated, and compare their results bit for bit.",
)
@click.option(
    "--repeats",
    type=click.IntRange(2, 1000),
    default=5,
    show_default=True,
    help="Of each program, with --devices: a chip may fail now and then only.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Seconds for --devices.",
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
    """Check this environment: versions, devices, wrong environment variables, which commands are ready.

    PLACES are checkpoints or folders, gs://bucket/run, org/name: can they be reached from here, and does a
    bucket lie in the region of this machine?

    Exit code 1 if something would go wrong; each line says what to do.
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
        found = diagnosis_as_json(diagnosis) | {"fit": diagnosis.fit and chips_sound}
        show_json(found if report is None else found | {"devices": devices_as_json(report)})
    else:
        show(*diagnosis_summary(diagnosis))
        if report is not None:
            show(*devices_summary(report))
    sys.exit(FINE if diagnosis.sound and chips_sound else FINDINGS)
