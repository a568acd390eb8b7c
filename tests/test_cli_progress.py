"""Progress: how much is done of how much, and the time left; a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from migrate.cli import progress as shown
from migrate.cli.progress import _Work, elapsed, moving_bytes, working
from migrate.progress import SharedCount
from tests.waiting import LIMIT, until


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Callable[[], io.StringIO]:
    """Open a log, in which a line of figures is due at once. pytest sets stderr anew before each test."""
    for name in ("_FIRST_SECONDS", "_NEXT_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(shown, name, 0.01)

    def opened() -> io.StringIO:
        printed = io.StringIO()
        monkeypatch.setattr("sys.stderr", printed)
        return printed

    return opened


def test_a_log_has_a_line_for_each_work_and_figures_while_it_lasts(
    log: Callable[[], io.StringIO],
) -> None:
    printed = log()
    with working(quiet=False) as progress:
        progress("loading")
        progress("training", 0, 16, "step")
        progress("training", 1, 16, "step")
        progress("training", 4, 16, "step")
        until(lambda: " left" in printed.getvalue(), "a line with the time left")
    lines = printed.getvalue().splitlines()
    assert "… loading" in lines
    assert "… training: 0 of 16 steps" in lines
    pattern = r"… training: 4 of 16 steps, \d+ s so far, about \d+ s left"
    assert any(re.fullmatch(pattern, line) for line in lines)


def test_the_time_of_first_steps_is_not_that_of_others(log: Callable[[], io.StringIO]) -> None:
    """They also start processes and compile: an estimate from them is many times too long."""
    printed = log()
    with working(quiet=False) as progress:
        progress("training", 0, 16, "step")
        for done in (1, 2):
            progress("training", done, 16, "step")
            line = f"training: {done} of 16 step"
            until(lambda line=line: line in printed.getvalue(), "a line of figures")
    assert " left" not in printed.getvalue()


def test_work_without_a_known_end_says_what_is_done(log: Callable[[], io.StringIO]) -> None:
    printed = log()
    with working(quiet=False) as progress:
        progress("running x.py", 3, 0, "step")
        # On a busy machine the line before it has figures, too.
        until(lambda: "3 steps, " in printed.getvalue(), "a line of figures")
    assert re.search(r"… running x.py: 3 steps, \d+ s so far$", printed.getvalue(), re.MULTILINE)


def test_bytes_have_a_rate(log: Callable[[], io.StringIO]) -> None:
    printed = log()
    with moving_bytes("converting a", quiet=False) as moved:
        moved(0, 100 * 10**9)
        moved(30 * 10**9, 100 * 10**9)
        until(lambda: " left" in printed.getvalue(), "a line with the time left")
    pattern = r"… converting a: 30.0 of 100.0 GB, \d+ MB/s, \d+ s so far, about \d+ s left"
    assert any(re.fullmatch(pattern, line) for line in printed.getvalue().splitlines())


def test_short_work_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr("sys.stderr", printed)
    monkeypatch.setattr(shown, "_FIRST_SECONDS", LIMIT)
    with working(quiet=False) as progress:
        for done in range(3):
            progress("checking", done, 3, "file")
    assert printed.getvalue() == "… checking: 0 of 3 files\n"


def test_several_kinds_of_work_share_one_count(log: Callable[[], io.StringIO]) -> None:
    printed = log()
    with working(quiet=False) as progress:
        compilations = SharedCount(progress, 4, "compilation")
        compilations("compiling for v5e-8")
        compilations.done += 2
        compilations("compiling for v6e-8")
        until(lambda: " left" in printed.getvalue(), "a line with the time left")
    assert "… compiling for v6e-8: 2 of 4 compilations" in printed.getvalue().splitlines()


def test_a_terminal_has_a_bar_with_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with working(quiet=False) as progress:
        progress("training", 4, 16, "step")
    with moving_bytes("converting a", quiet=False) as moved:
        moved(10 * 10**9, 100 * 10**9)
    assert "4 of 16 steps" in screen.getvalue()
    assert "10.0 of 100.0 GB" in screen.getvalue()


def test_nothing_is_printed_with_json(log: Callable[[], io.StringIO]) -> None:
    printed = log()
    with working(quiet=True) as progress:
        progress("training", 4, 16, "step")
    assert printed.getvalue() == ""


def test_a_step_that_compiles_again_does_not_change_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradient accumulation has a second graph, which a later step compiles."""
    clock = [0.0]
    monkeypatch.setattr(shown, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    work = _Work("training", began=0.0)
    for done, seconds in enumerate((30.0, 2.0, 2.0, 40.0, 2.0, 2.0), start=1):
        clock[0] += seconds
        work.advance(done, 16, "step")
    assert work.line(clock[0]) == "… training: 6 of 16 steps, 78 s so far, about 20 s left"


@pytest.mark.parametrize(
    ("seconds", "says"),
    [(12.4, "12 s"), (120, "2 min"), (150, "2 min 30 s"), (7210, "2 h 10 s"), (7500, "2 h 5 min")],
)
def test_the_time_so_far(seconds: float, says: str) -> None:
    assert elapsed(seconds) == says


def test_no_two_lines_of_the_same_work_have_the_same_time() -> None:
    times = [elapsed(second) for second in range(5, 9000, 30)]
    assert len(set(times)) == len(times)
