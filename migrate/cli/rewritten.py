"""Rewritten form of a script and of its imports, for as long as a command runs it."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from migrate.catalogue.target import XLA, Target
from migrate.cli.show import show
from migrate.counts import many

if TYPE_CHECKING:
    from migrate.rewrite.temporary import RewrittenFiles

_MOST_NAMES = 20
_MOST_FINDINGS = 3


def rewritten_for_the_run(script: Path, stack: contextlib.ExitStack, target: Target = XLA) -> Path:
    """Write the rewritten form of `script` and of its imports to a folder of their own; return where."""
    return rewritten_with_findings(script, stack, target)[0]


def rewritten_with_findings(
    script: Path, stack: contextlib.ExitStack, target: Target = XLA
) -> tuple[Path, int]:
    """Write the rewritten form of `script` and of its imports to a folder of their own.

    The folder is there until `stack` ends. Which files were rewritten is shown, and the first of what is left
    to do by hand: should the run fail, it is the first suspect.

    Returns:
        The rewritten script, and the number of findings that are left to do by hand; information is none.
    """
    from migrate.check.config import Config
    from migrate.check.hazard import Severity
    from migrate.report.text.rewrite import findings_of_files
    from migrate.rewrite.options import RewriteOptions
    from migrate.rewrite.temporary import rewritten_with_imports, written_apart

    done = rewritten_with_imports(script, RewriteOptions(config=Config(target=target)))
    click.echo(f"… {_what_was_rewritten(done)}", err=True)
    for problem in done.problems:
        click.echo(f"migrate: runs as it is: {problem}", err=True)
    # `rewrite` of a script reads no other file, `check` its imports too.
    command = "migrate rewrite {} --check" if done.read == 1 else "migrate check {}"
    show(
        *findings_of_files(
            done.findings, most=_MOST_FINDINGS, rest=command.format(shlex.quote(str(script)))
        ),
        err=True,
    )
    left = sum(note.severity is not Severity.INFO for _, note in done.findings)
    return stack.enter_context(written_apart(done)), left


def copied_for_the_run(folder: Path, script: Path, stack: contextlib.ExitStack) -> Path:
    """Write what differs in a rewritten copy of the project to a folder of its own; return its script."""
    from migrate.rewrite.temporary import rewritten_in, written_apart

    return stack.enter_context(written_apart(rewritten_in(folder, script)))


def rewritten_names(script: Path, rewritten: Path) -> dict[Path, str]:
    """Return names for the rewritten files that the user knows."""
    from shims._started import stand_in

    here = Path.cwd()
    names = {rewritten: str(script)} | {
        file: str(path.relative_to(here) if path.is_relative_to(here) else path)
        for path, file in stand_in.files(rewritten).items()
    }
    return {file: f"{name} (rewritten)" for file, name in names.items()}


def _what_was_rewritten(done: RewrittenFiles) -> str:
    if not done.changed:
        more = f" and {many(done.read - 1, 'file')} that it imports" if done.read > 1 else ""
        return f"nothing to rewrite in {done.script}{more}"
    return f"rewrote {listed(done.changed)}"


def listed(names: tuple[str, ...]) -> str:
    """Return the names, separated by commas; of very many only the first."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {many(more, 'more file')}" if more > 0 else "")
