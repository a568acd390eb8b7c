"""`migrate rewrite`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from migrate.catalogue.target import TPU, Target
from migrate.cli.options import as_json, configuration, fail_on, force, takes_the_form
from migrate.cli.progress import working
from migrate.cli.show import FINDINGS, FINE, errors, show, show_diff, show_json
from migrate.rewrite.options import RewriteOptions


@click.command(
    epilog="Example: migrate rewrite train.py --diff",
    short_help="Rewrite DDP scripts for torch_xla or torch_tpu.",
)
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the result to this file or folder.",
)
@click.option("--diff", is_flag=True, help="Print the changes as a patch; write nothing.")
@click.option("--in-place", is_flag=True, help="Overwrite the scripts, or the files of the folder.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
@force
@takes_the_form
@fail_on
@as_json
def rewrite(
    paths: tuple[Path, ...],
    output: Path | None,
    diff: bool,
    in_place: bool,
    check: bool,
    force: bool,
    fail_on: str | None,
    target: Target | None,
    json_output: bool,
    **form: Any,
) -> None:
    """Rewrite DDP scripts and notebooks into torch_xla launch and step form, or for torch_tpu.

    PATH is a script, a notebook or a folder. The result of train.py is train_xla.py beside it, for torch_tpu
    train_tpu.py; train.py itself stays as it is. The result of a folder goes to the folder -o, with copies of
    all other files, or over the originals with --in-place.

    Code that no rule can rewrite is listed with file and line. The exit code is 1 if such code is an error.
    The settings in `[tool.migrate]` and the comments `# migrate: ignore[CODE]` apply as in `migrate check`.
    """
    if output is not None and (in_place or len(paths) > 1):
        raise click.UsageError("-o takes one PATH, and cannot be combined with --in-place")
    if sum((diff, in_place, check)) > 1:
        raise click.UsageError("--diff, --in-place and --check cannot be combined")
    with errors():
        config = configuration(paths[0], fail_on=fail_on, target=target)
        if config.target == TPU and form["style"] == "portable":
            raise click.UsageError(
                "--style portable runs on torch_tpu as it is, without --target torch_tpu"
            )
        options = RewriteOptions(**form, config=config)
    writes = not (diff or check)
    if len(paths) == 1 and paths[0].is_dir() and (output or in_place or not writes):
        to = (paths[0] if in_place else output) if writes else None
        if output is not None and output == paths[0]:
            raise click.UsageError(f"{output}: -o names the folder itself; pass --in-place")
        with errors():
            sys.exit(_rewrite_folder(paths[0], to, options, diff, force, json_output))
    with errors():
        from migrate.report.text.rewrite import rewrite_as_json, rewrite_summary
        from migrate.rewrite.file import rewrite_file
        from migrate.rewrite.write import beside, write_all

        rewrites = [rewrite_file(path, options) for path in paths]
        targets = [path if in_place else output or beside(path, config.target) for path in paths]
        pairs = list(zip(rewrites, targets, strict=True))
        if writes:
            write_all(pairs, force=force, in_place=in_place)
        if json_output:
            show_json([rewrite_as_json(done, to if writes else None) for done, to in pairs])
        for done, to in () if json_output else pairs:
            if diff:
                show_diff(done.diff(to))
            # With --diff, stdout is a patch and nothing else.
            show(*rewrite_summary(done, to if writes else None, paths), err=diff)
    on = options.config.fails_on
    left = any(done.fails(on) or done.unread or (check and done.changed) for done in rewrites)
    sys.exit(FINDINGS if left else FINE)


def _rewrite_folder(
    folder: Path, to: Path | None, options: RewriteOptions, diff: bool, force: bool, json: bool
) -> int:
    """Do what `rewrite` does for a whole folder; return the exit code."""
    from migrate.report.text.folder import folder_as_json, folder_summary
    from migrate.rewrite.write import rewrite_into

    with working(quiet=json) as progress:
        done = rewrite_into(folder, to, options=options, force=force, progress=progress)
    if json:
        show_json(folder_as_json(done, to))
    else:
        if diff:
            show_diff(done.diff())
        show(*folder_summary(done, to), err=diff)
    would_change = to is None and not diff and done.changed
    return (
        FINDINGS if done.fails(options.config.fails_on) or done.problems or would_change else FINE
    )
