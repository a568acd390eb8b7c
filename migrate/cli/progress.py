"""Progress on stderr: rich's bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import click

from migrate.cli.console import console_for
from migrate.counts import many
from migrate.progress import Progress, no_progress

# A log gets a first line of figures for work that takes this long, and further lines at this distance.
_FIRST_SECONDS, _NEXT_SECONDS = 5.0, 30.0
_LOOK_SECONDS = 0.25
# The time left follows from so many units. First steps are left out: they also start processes and compile.
_ENOUGH_UNITS = 2
_FIRST_UNITS = {"step": 1}
# The unit whose work is alike, except where a step compiles another graph.
_REPEATED = "step"


def shown_duration(seconds: float) -> str:
    """Return `12 s`, `3 min` or `2.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def elapsed(seconds: float) -> str:
    """Return `12 s`, `3 min 30 s` or `2 h 5 min 10 s`: two lines of the same work have different times."""
    if seconds < 100:
        return shown_duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    parts = {"h": minutes // 60, "min": minutes % 60, "s": rest}
    return " ".join(f"{number} {unit}" for unit, number in parts.items() if number)


@contextlib.contextmanager
def working(quiet: bool) -> Iterator[Progress]:
    """Yield a function that shows the current work, how much of it is done, and the time left."""
    if quiet:
        yield no_progress
    elif sys.stderr.isatty():
        with _bars() as progress:
            yield progress
    else:
        with in_lines() as progress:
            yield progress


@contextlib.contextmanager
def moving_bytes(message: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes the bytes done and their total, and shows them."""
    with working(quiet) as progress:
        progress(message)
        yield lambda done, total: progress(message, done, total, "B")


@dataclass
class _Work:
    """The work that is being done.

    Attributes:
        what: its name.
        began: the time at its beginning.
        done, total, unit: how much is done; see `Progress`.
        first: the time and the units done when the time of a unit began to be measured.
        paces: seconds per unit of each advance since then, and its units.
        reported: the time of the last line.
        lines: the number of lines with figures.
        last: the time and the units done at the last advance.
    """

    what: str = "starting"
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    total: int = 0
    unit: str = ""
    first: tuple[float, int] | None = None
    paces: list[tuple[float, int]] = field(default_factory=list)
    reported: float = field(default_factory=time.monotonic)
    lines: int = 0
    last: tuple[float, int] | None = None

    def shares_count(self, total: int, unit: str) -> bool:
        """Whether further work continues the count of this work: compilations for several slices."""
        return total > 0 and (total, unit) == (self.total, self.unit)

    def followed_by(self, what: str, total: int, unit: str) -> _Work:
        """Return further work, with the time of its first unit if it continues the count."""
        if not self.shares_count(total, unit):
            return _Work(what)
        return _Work(what, first=self.first, paces=self.paces, last=self.last)

    def advance(self, done: int, total: int, unit: str) -> None:
        now = time.monotonic()
        if self.first is None and total and done >= _FIRST_UNITS.get(unit, 0):
            self.first = self.last = (now, done)
        elif self.last is not None and unit == _REPEATED and done > self.last[1]:
            units = done - self.last[1]
            self.paces.append(((now - self.last[0]) / units, units))
            self.last = (now, done)
        self.done, self.total, self.unit = done, total, unit

    def is_due(self, now: float) -> bool:
        return now - self.reported >= (_NEXT_SECONDS if self.lines else _FIRST_SECONDS)

    def line(self, now: float) -> str:
        """Return the figures: `… training: 3 of 16 steps, 12 s so far, about 50 s left`."""
        parts = [self.count] if self.count else []
        spent = now - self.first[0] if self.first else 0.0
        moved = self.done - self.first[1] if self.first else 0
        if self.unit == "B" and spent and moved:
            parts.append(f"{moved / spent / 1e6:.0f} MB/s")
        parts.append(f"{elapsed(now - self.began)} so far")
        enough = 1 if self.unit == "B" else _ENOUGH_UNITS
        if spent and moved >= enough and self.total > self.done:
            pace = self._median() if self.unit == _REPEATED else spent / moved
            parts.append(f"about {shown_duration(pace * (self.total - self.done))} left")
        return f"… {self.what}: {', '.join(parts)}"

    def _median(self) -> float:
        """Median of the seconds per unit: a step among many that compiles once more does not count."""
        half = sum(units for _, units in self.paces) / 2
        for pace, units in sorted(self.paces):
            half -= units
            if half <= 0:
                return pace
        return 0.0

    @property
    def count(self) -> str:
        """The units that are done, in words."""
        if self.unit == "B":
            return f"{self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB" if self.total else ""
        if self.total:
            return f"{self.done:,} of {many(self.total, self.unit)}"
        return many(self.done, self.unit) if self.done else ""


@contextlib.contextmanager
def in_lines() -> Iterator[Progress]:
    """Yield a function that writes a line for each new work, and a line of figures now and then."""
    over, work, lock = threading.Event(), [_Work()], threading.Lock()

    def progress(what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
        with lock:
            if what != work[0].what:
                work[0] = work[0].followed_by(what, total, unit)
                work[0].advance(done, total, unit)
                count = f": {work[0].count}" if work[0].count and unit != "B" else ""
                click.echo(f"… {what}{count}", err=True)
            work[0].advance(done, total, unit)

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            with lock:
                now = time.monotonic()
                if work[0].is_due(now):
                    click.echo(work[0].line(now), err=True)
                    work[0].reported, work[0].lines = now, work[0].lines + 1

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def _bars() -> Iterator[Progress]:
    """Yield a function that updates a bar of rich's."""
    from rich.progress import (
        BarColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),  # brackets and colons may be of a path
        BarColumn(bar_width=16),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console_for(err=True), transient=True) as bars:
        task, work = bars.add_task("starting", total=None, count=""), [_Work()]

        def progress(what: str, done: int = 0, total: int = 0, unit: str = "file") -> None:
            if what != work[0].what:
                if not work[0].shares_count(total, unit):
                    bars.reset(task, total=total or None)
                work[0] = work[0].followed_by(what, total, unit)
            work[0].advance(done, total, unit)
            bars.update(
                task,
                description=what,
                completed=done,
                total=total or None,
                count=work[0].count,
                refresh=not done,
            )

        yield progress
