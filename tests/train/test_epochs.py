"""Epochs that are longer than the recorded updates."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from migrate.train.frames import Frame
from migrate.train.slice.loops import loop_ends
from migrate.train.slice.text import ScriptText
from migrate.train.watch.epochs import Epochs

FIRST, SECOND = 1, 2  # schedules


@pytest.mark.parametrize(
    ("end", "tests"),
    [
        ("if args.dry_run:\n    break", [["args.dry_run"]]),
        ("if i % 10 == 0:\n    if args.dry_run:\n        break", [["args.dry_run"]]),
        ("if args.whole:\n    pass\nelse:\n    break", [["not (args.whole)"]]),
        ("if i == 100:\n    break", [[]]),
        ("if len(data) > 3:\n    break", [[]]),
        ("if state.stop:\n    break\nstate.stop = loss < 1", [[]]),
        ("if stopper.stop:\n    break\nstopper.seen(loss)", [[]]),
        ("if stopper.stop:\n    break\nseen(stopper, loss)", [[]]),
        ("if done:\n    break", [[]]),  # a function binds it
        ("for z in y:\n    break", []),
        ("for z in y:\n    return", [[]]),
    ],
)
def test_tests_around_what_ends_a_loop(end: str, tests: list[list[str]]) -> None:
    body = textwrap.indent(end, " " * 8)
    text = (
        "def finish():\n    global done\n    done = True\n\n\n"
        f"def train(args, stopper, data):\n    for i, (x, y) in enumerate(data):\n{body}\n"
        "        loss = model(x)\n        loss.backward()\n"
    )
    line = text.count("\n")
    assert loop_ends(ScriptText("train.py", text), Frame(line, "train", 6)) == tests


def hurried(*epochs: tuple[int, dict[int, list[int]]]) -> Epochs:
    """Epochs of so many turns, with the turns that came before each step of a schedule."""
    seen = Epochs("train.py", 1, [])
    seen.hurry()
    for turns, steps in epochs:
        seen.begin()
        for turn in range(turns + 1):
            for schedule, before in steps.items():
                for _ in range(before.count(turn)):
                    seen.step(schedule)
            if turn < turns:
                assert seen.turn({}, {})
    return seen


def test_a_schedule_that_is_stepped_once_after_each_epoch() -> None:
    seen = hurried((5, {FIRST: [5]}), (5, {FIRST: [5]}))
    assert seen.turns(FIRST, ended=True) == 5
    assert seen.turns(SECOND, ended=True) == 0  # it is never stepped


@pytest.mark.parametrize(
    "epochs",
    [
        [(5, {FIRST: [5]}), (4, {FIRST: [4]})],
        [(5, {FIRST: [0]})],
        [(5, {FIRST: [5, 5]})],
        [(5, {FIRST: [2, 5]})],
        [(5, {FIRST: [5]}), (5, {})],
    ],
)
def test_other_steps_show_nothing(epochs: list[tuple[int, dict[int, list[int]]]]) -> None:
    seen = hurried(*epochs)
    assert seen.turns(FIRST, ended=True) == 0


def test_epochs_of_a_run_that_is_not_hurried() -> None:
    seen = Epochs("train.py", 1, [["True"]])  # what ends it early has ended it
    for _ in range(2):
        seen.begin()
        for _ in range(3):
            assert not seen.turn({}, {})
        seen.step(FIRST)
    assert seen.turns(FIRST, ended=True) == 3


@pytest.mark.parametrize(("args", "turns"), [("False", 2), ("True", 0), ("unknown", 0)])
def test_an_epoch_that_may_end_early_shows_nothing(args: str, turns: int) -> None:
    seen = Epochs("train.py", 1, [[args]])
    seen.hurry()
    seen.begin()
    seen.turn({}, {})
    seen.turn({}, {})
    seen.step(FIRST)
    assert seen.turns(FIRST, ended=True) == turns
    assert seen.turns(FIRST, ended=False) == 0  # this epoch has not come to its end


def test_loaders_repeat_a_batch_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import dataloader

    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    iterators = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterators, "__next__", iterators.__next__)
    read: list[int] = []

    class Rows(TensorDataset):
        def __getitem__(self, row: int) -> tuple[torch.Tensor, ...]:
            read.append(row)
            return super().__getitem__(row)

    loader = DataLoader(Rows(torch.arange(12.0)), batch_size=2)
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text == "    for batch in loader:")
    seen = Epochs(__file__, line, [])
    seen.follow()
    given = []
    for batch in loader:
        given.append(batch[0].tolist())
        if len(given) == 2:
            seen.hurry()
    assert given == [[0.0, 1.0], *[[2.0, 3.0]] * 5]
    assert len(read) == 4
    assert len([*loader]) == 1  # of another loop
