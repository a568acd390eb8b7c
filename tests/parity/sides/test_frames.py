"""Lines of source: of definitions, of callers, of what raised."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.parity.sides import frames

HERE = Path(__file__)


def line(text: str) -> int:
    return HERE.read_text().splitlines().index(text) + 1


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


@decorated
@decorated
def twice() -> None: ...


class Thing:
    def forward(self) -> str:
        return frames.caller()


def test_definitions_are_found_below_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parent)
    assert frames.defined(twice) == f"test_frames.py:{line('def twice() -> None: ...')}"
    assert frames.defined(Thing) == f"test_frames.py:{line('class Thing:')}"
    forward = f"test_frames.py:{line('    def forward(self) -> str:')}"
    assert frames.defined(Thing.forward) == forward
    assert frames.defined(Thing().forward) == forward
    assert frames.defined(functools.partial(twice)) == frames.defined(twice)


def test_elsewhere_the_path_is_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert frames.defined(Thing).startswith(str(HERE.absolute()))


def test_what_has_no_source_has_no_line() -> None:
    assert frames.defined(len) == ""
    assert frames.defined(int) == ""
    assert frames.defined(eval("lambda: 0")) == ""


def test_the_caller_is_the_nearest_frame_that_is_not_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(HERE.parent)
    here = inspect.currentframe()
    assert here is not None
    assert Thing().forward() == f"test_frames.py:{line('        return frames.caller()')}"
    through: dict[str, Any] = {"__name__": "torch.nn.module", "caller": frames.caller}
    exec("def call():\n    return caller()", through)
    assert through["call"]() == f"test_frames.py:{here.f_lineno}"


def test_nothing_above_the_run_is_a_caller() -> None:
    run: dict[str, Any] = {"__name__": "migrate.parity.sides.some", "caller": frames.caller}
    exec("def call():\n    return caller()", run)
    assert run["call"]() == ""


def test_the_users_line_of_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parent)

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011 (only where it was raised is of interest)
        fails()
    assert frames.raised(caught.tb) == f"test_frames.py:{line('        raise ValueError')}"
