"""What all commands share on their way out: text, JSON, progress, errors, exit codes.

Exit codes: 0 done and fine, 1 findings or a mismatch, 2 could not (one line says what, where, what to do).
"""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from migrate.reading.project.progress import Tell

FINE, FINDINGS, COULD_NOT = 0, 1, 2
_SECONDS_OF_A_LINE = 30.0  # of a log
_ENDLESS = 100_000  # columns


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
    """In a line, that a disk takes nothing more; "" of other errors."""
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


def _console(*, err: bool = False) -> Console:
    from rich.console import Console

    # A pipe or a log has no width of its own: what is one line stays one. Codes of rich's emoji stay as they
    # are: `train.py:100:7` is a place.
    on_screen = (sys.stderr if err else sys.stdout).isatty()
    width = None if on_screen else _ENDLESS
    return Console(stderr=err, force_terminal=on_screen, width=width, highlight=False, emoji=False)


def show(*renderables: RenderableType, err: bool = False) -> None:
    """Print tables and texts on stdout, or on stderr."""
    console = _console(err=err)
    if console.is_terminal:
        for renderable in renderables:
            console.print(renderable)
        return
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    # A table fills its cells with spaces.
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), err=err)


def show_diff(diff: str) -> None:
    """Print a patch on stdout: as it is, with colours on a terminal."""
    if sys.stdout.isatty():
        colours = {"+": "green", "-": "red", "@": "cyan"}
        lines = diff.splitlines(keepends=True)
        diff = "".join(click.style(line, fg=colours.get(line[:1])) for line in lines)
    click.echo(diff, nl=False)


def show_json(value: Any) -> None:
    """Print `value` as JSON on stdout."""
    import json

    click.echo(json.dumps(value, indent=2))


@contextlib.contextmanager
def working(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows what is being done and for how long: live on a terminal, lines in a log."""
    if quiet:
        yield lambda _: None
        return
    console = _console(err=True)
    if not console.is_terminal:
        with _long_work() as say:
            yield say
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # No markup: brackets and colons may be of a path.
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda message: bar.update(task, description=message, refresh=True)


@contextlib.contextmanager
def _long_work() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a line; while none comes, others say now and then that it goes on."""
    began, over, doing = time.monotonic(), threading.Event(), ["starting"]

    def say(message: str) -> None:
        doing[0] = message
        click.echo(f"… {message}", err=True)

    def go_on() -> None:
        while not over.wait(_SECONDS_OF_A_LINE):
            click.echo(f"… {doing[0]}: {time.monotonic() - began:.0f} s so far", err=True)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def working_at_files(quiet: bool) -> Iterator[Tell]:
    """Yield what shows what is being done; on a terminal also how many files are done, and the time left."""
    if quiet:
        yield lambda what, done=0, total=0: None
        return
    console = _console(err=True)
    if not console.is_terminal:

        def log(what: str, done: int = 0, total: int = 0) -> None:
            if not done:
                click.echo(f"… {what} {total} files" if total else f"… {what}", err=True)

        yield log
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[files]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, files="")

        def tell(what: str, done: int = 0, total: int = 0) -> None:
            if not done:
                bar.reset(task, total=total or None)
            files = f"{done} of {total} files" if total else ""
            bar.update(task, description=what, completed=done, files=files)

        yield tell


def _in_lines() -> Callable[[int, int], None]:
    """What tells of bytes in a log: a line now and then, with the rate and the time left."""
    # The rate is that of the values: what was done and when, at the first word of them.
    began: tuple[float, int] | None = None
    told = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal began, told
        now = time.monotonic()
        if began is None:
            began, told = (now, done), now
        if now - told < _SECONDS_OF_A_LINE or done == total:
            return
        told = now
        rate = max(done - began[1], 1) / (now - began[0])
        left = (total - done) / rate / 60
        click.echo(
            f"… {done / 1e9:.1f} of {total / 1e9:.1f} GB, {rate / 1e6:.0f} MB/s, {left:.0f} min left",
            err=True,
        )

    return tell


@contextlib.contextmanager
def moving_bytes(message: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the bytes done and their total: a bar on a terminal, lines in a log."""
    if quiet:
        yield lambda done, total: None
        return
    console = _console(err=True)
    if not console.is_terminal:
        click.echo(f"… {message}", err=True)
        yield _in_lines()
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    text = TextColumn("{task.description}", markup=False)
    with Progress(text, *columns, console=console, transient=True) as bar:
        task = bar.add_task(message, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
