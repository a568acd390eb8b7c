"""`migrate check`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from migrate.catalogue.target import Target
from migrate.cli.options import as_json, configuration, fail_on, target
from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors


@click.command(
    epilog="Example: migrate check train.py lib/ --select XLA1,XLA3",
    short_help="Report code that fails, hangs or is slow on a TPU.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--select",
    multiple=True,
    metavar="CODES",
    help="Report only these codes, separated by commas. XLA2 selects all codes that start with XLA2.",
)
@click.option("--ignore", multiple=True, metavar="CODES", help="Report all codes except these.")
@click.option(
    "--format",
    "form",
    default="text",
    show_default=True,
    type=click.Choice(["text", "json", "sarif", "github"]),
    help="Format of the report.",
)
@click.option("--explain", metavar="CODE", help="Print the page of a code; list prints all codes.")
@target
@fail_on
@as_json
def check(
    paths: tuple[Path, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    form: str,
    explain: str | None,
    target: Target | None,
    fail_on: str | None,
    json_output: bool,
) -> None:
    """Report code that fails, hangs or is slow on a TPU. Change nothing.

    Findings that `migrate rewrite` fixes are marked [*]. The mark [*unsafe] means that the page of the rule
    names a condition. Findings without a mark are left to you.

    `[tool.migrate]` in pyproject.toml sets select, ignore, exclude, severity and fail-on. The comment
    `# migrate: ignore[CODE]` silences a line. The exit code is 1 if there is an error.
    """
    if not paths and not explain:
        raise click.UsageError("give the path of a script or a folder")
    with errors():
        from migrate.report.text.check import check_lines
        from migrate.report.text.explained import explanation
        from migrate.rewrite.check_findings import check_and_mend

        if explain:
            click.echo(explanation(explain))
            return
        config = configuration(paths[0], select, ignore, fail_on, target)
        form = "json" if json_output else form
        with working(quiet=form != "text") as progress:
            checked = check_and_mend(paths, config, progress)
        for line in check_lines(checked, form):
            click.echo(line)
    sys.exit(FINDINGS if checked.failed else FINE)
