"""Output that all commands share: text, JSON, errors, exit codes.

Exit codes: 0 done and fine, 1 findings or a mismatch, 2 could not (one line says what, where, what to do).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.console import columns, console_for

if TYPE_CHECKING:
    from rich.console import RenderableType

FINE, FINDINGS, COULD_NOT = 0, 1, 2


def keep_jax_on_cpu() -> None:
    """Keep jax off a TPU in this process and those that it starts, unless the user chose a platform.

    It must neither take the chips from who uses them, nor wait for them; libtpu prints what it does not find.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Turn errors, this program's own and defects of it, into one line on stderr and exit code 2."""
    from converters.errors import ConversionError
    from converters.installing import missing_behind
    from migrate.errors import MigrateError
    from shims.errors import ShimError

    try:
        yield
    except click.ClickException:
        raise  # click says what is wrong with the command line
    except (MigrateError, ConversionError, ShimError) as error:
        if click.get_current_context().find_root().obj:
            raise
        click.echo(f"migrate: {error}", err=True)
        _show_details(error)
        sys.exit(COULD_NOT)
    except Exception as error:
        if click.get_current_context().find_root().obj:
            raise
        if missing := missing_behind(error):
            click.echo(f"migrate: {missing}", err=True)
            sys.exit(COULD_NOT)
        if isinstance(error, OSError) and (refused := _no_disk(error)):
            click.echo(f"migrate: {refused}", err=True)
            sys.exit(COULD_NOT)
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        click.echo(f"migrate: internal error ({what}); please report what --debug shows", err=True)
        sys.exit(COULD_NOT)


def _no_disk(error: OSError) -> str:
    """Return one line about a full or read-only disk; "" for other errors."""
    import tempfile

    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        place = error.filename or tempfile.gettempdir()
        return f"{place}: {error.strerror}; make room there, or name another folder with TMPDIR"
    if "No usable temporary directory" in str(error):
        return f"{error.strerror}; name one with TMPDIR"
    return ""


def _show_details(error: Exception) -> None:
    """Show on stderr what an error carries beside its line: refused keys, a script's last output."""
    from converters.errors import MappingFileError, MisfitError, RefusedKeysError

    if isinstance(error, RefusedKeysError):
        from migrate.report.text.weights import plan_table

        show(plan_table(error.refused), err=True)
    elif isinstance(error, MisfitError) and len(error.misfits) > error.SHOWN:
        click.echo("\n".join(error.misfits), err=True)
    elif isinstance(error, MappingFileError) and len(error.problems) > error.SHOWN:
        click.echo("\n".join(error.problems), err=True)
    elif missing := getattr(error, "missing", ()):
        from migrate.report.text.port import missing_table

        show(missing_table(missing), err=True)
    elif output := getattr(error, "output", ""):
        click.echo(output, err=True)


def show(*renderables: RenderableType, err: bool = False) -> None:
    """Print tables and texts on stdout, or on stderr.

    A terminal breaks the cells of tables. A pipe or a file gets each row on one line, for grep and for
    copying, unless COLUMNS is set.
    """
    from rich.table import Table

    console = console_for(err=err)
    if console.is_terminal:
        for renderable in renderables:
            console.print(renderable)
        return
    with console.capture() as captured:
        for renderable in renderables:
            narrow = isinstance(renderable, Table) and "COLUMNS" in os.environ
            console.print(renderable, width=columns() if narrow else None)
    # A table fills its cells with spaces.
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), err=err)


def show_diff(diff: str) -> None:
    """Print a patch on stdout: as it is, with colors on a terminal."""
    if sys.stdout.isatty():
        colors = {"+": "green", "-": "red", "@": "cyan"}
        lines = diff.splitlines(keepends=True)
        diff = "".join(click.style(line, fg=colors.get(line[:1])) for line in lines)
    click.echo(diff, nl=False)


def show_json(value: Any) -> None:
    """Print `value` as JSON on stdout."""
    import json

    click.echo(json.dumps(value, indent=2))
