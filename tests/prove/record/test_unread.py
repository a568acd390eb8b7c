"""When the values of a step are read: one sync late, unless they are wanted at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from migrate.prove.record.unread import UnreadValues


class Program:
    """Steps and syncs as torch_xla has them, by names instead of values."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.unread = UnreadValues()
        self._closures: list[Callable[[], None]] = []

    def add_step_closure(self, closure: Callable[[], None]) -> None:
        self._closures.append(closure)

    def step(self, name: str, *, at_once: bool = False) -> None:
        self.unread.add(lambda: self.read.append(name), at_once=at_once)

    def sync(self) -> list[str]:
        """Synchronize, and return what was read then."""
        closures, self._closures = self._closures, []
        before = len(self.read)
        for closure in closures:
            closure()
        return self.read[before:]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    one = Program()
    core = SimpleNamespace(xla_model=SimpleNamespace(add_step_closure=one.add_step_closure))
    monkeypatch.setitem(sys.modules, "torch_xla.core", core)
    return one


def test_a_step_is_read_when_the_next_one_is_synchronized(program: Program) -> None:
    program.step("1")
    assert program.sync() == []
    assert program.sync() == []  # `torch_xla.step()` synchronizes before its block too
    program.step("2")
    assert program.sync() == ["1"]
    program.step("3")
    assert program.sync() == ["2"]
    program.unread.read_all()
    assert program.read == ["1", "2", "3"]


def test_steps_of_one_graph_are_read_together(program: Program) -> None:
    program.step("critic 1")
    program.step("generator 1")
    assert program.sync() == []
    program.step("critic 2")
    program.step("generator 2")
    assert program.sync() == ["critic 1", "generator 1"]


def test_at_once_reads_what_came_before_as_well(program: Program) -> None:
    program.step("1")
    program.sync()
    program.step("2")
    program.step("end", at_once=True)
    assert program.sync() == ["1", "2", "end"]
    program.step("3")
    assert program.sync() == []
    program.unread.read_all()
    assert program.read[-1] == "3"


def test_without_a_sync_all_is_read_at_the_end(program: Program) -> None:
    program.step("1")
    program.step("2")
    program.unread.read_all()
    assert program.read == ["1", "2"]
    assert program.sync() == []  # nothing is read twice
