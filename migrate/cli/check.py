"""`migrate check`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from migrate.cli.options import as_json, configuration, fail_on
from migrate.cli.show import FINDINGS, FINE, errors, working_at_files


@click.command(
    epilog="Example: migrate check train.py lib/ --select XLA1,XLA3",
    short_help="Report what would fail, hang or be slow on a TPU.",
)
@click.argument("paths", metavar="PATH...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--select", multiple=True, metavar="CODES", help="Only these: XLA201, or XLA2.")
@click.option("--ignore", multiple=True, metavar="CODES", help="All but these.")
@click.option(
    "--format", "form", default="text", type=click.Choice(["text", "json", "sarif", "github"])
)
@click.option("--explain", metavar="CODE", help="Print the page of a code; `list` lists them.")
@fail_on
@as_json
def check(
    paths: tuple[Path, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    form: str,
    explain: str | None,
    fail_on: str | None,
    json_output: bool,
) -> None:
    """Report what fails, hangs or is slow on a TPU, as a linter does. Nothing is changed.

    What `migrate rewrite` mends is marked [*], or [*unsafe] where the page of its rule names a condition;
    what is not marked is what it leaves. `[tool.migrate]` in pyproject.toml has select, ignore, exclude,
    severity and fail-on; `# migrate: ignore[CODE]` silences a line. Exit code 1 if there is an error.
    """
    if not paths and not explain:
        raise click.UsageError("give the path of a script or a folder")
    with errors():
        from migrate.report.text.check import check_lines
        from migrate.report.text.explained import explanation
        from migrate.rewrite.foretold import check_and_mend

        if explain:
            click.echo(explanation(explain))
            return
        config = configuration(paths[0], select, ignore, fail_on)
        form = "json" if json_output else form
        with working_at_files(quiet=form != "text") as progress:
            checked = check_and_mend(paths, config, progress)
        for line in check_lines(checked, form):
            click.echo(line)
    sys.exit(FINDINGS if checked.failed else FINE)
