"""`migrate doctor`."""

from __future__ import annotations

import sys

import click

from migrate.cli.options import as_json
from migrate.cli.show import FINDINGS, FINE, show, show_json, working


@click.command(epilog="Example: migrate doctor", short_help="Check versions, devices, environment.")
@as_json
def doctor(json_output: bool) -> None:
    """Check this environment: versions, devices, wrong environment variables, what is missing.

    Exit code 1 if something would go wrong; each line says what to do.
    """
    from migrate.doctor import diagnose
    from migrate.views.doctor import diagnosis_as_json, diagnosis_summary

    with working(quiet=json_output) as progress:
        diagnosis = diagnose(progress=progress)
    if json_output:
        show_json(diagnosis_as_json(diagnosis))
    else:
        show(*diagnosis_summary(diagnosis))
    sys.exit(FINE if diagnosis.fit else FINDINGS)
