"""Meters that an object holds in a dictionary or list, reduced and read below a test of the rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = """\
from collections import defaultdict

import torch
import torch.distributed as dist
import torch_xla


class Meter:
    def __init__(self):
        self.total = torch.zeros(1, device="xla")
        self.count = 0

    def update(self, x):
        self.total += x
        self.count += 1

    def reduce(self):
        dist.all_reduce(self.total)

    @property
    def average(self):
        return self.total.item() / self.count

    @property
    def label(self):
        return f"{self.count} values"

    def value(self):
        return self.total.item()


class Board:
    def __init__(self, names):
        self.one = Meter()
        self.made = defaultdict(Meter)
        self.fixed = {"loss": Meter()}
        self.put = {}
        self.row = []
        for name in names:
            self.put[name] = Meter()
            self.row.append(Meter())

    def reduce(self):
        for meter in self.made.values():
            meter.reduce()


"""


def lines(body: str, code: str) -> list[str]:
    """Return the lines of `body`, a function below `HEAD`, that are reported as `code`."""
    text = HEAD + body
    found = check_source(parse(text.encode(), Path("script.py")), Config(select=(code,)))
    return [text.splitlines()[one.line - 1].strip() for one in found]


@pytest.mark.parametrize(
    "call",
    [
        "board.one.reduce()",
        'board.made["loss"].reduce()',
        'board.fixed["loss"].reduce()',
        "board.put[name].reduce()",
        "board.row[0].reduce()",
        "[m.reduce() for m in board.put.values()]",
        "board.reduce()",
    ],
)
def test_a_collective_of_some(call: str) -> None:
    """All replicas make it elsewhere: it is reported where some replicas only do."""
    body = f"""\
def log(rank, name):
    board = Board([name])
    board.reduce()
    board.one.reduce()
    if rank == 0:
        {call}
"""
    assert lines(body, "XLA302") == [call]


def test_collectives_of_all_and_what_holds_nothing() -> None:
    body = """\
def log(rank, name):
    board = Board([name])
    board.reduce()
    fresh()
    if rank == 0:
        Board([]).reduce()
        print(board.one.count, board.one.label)
        fresh()


def fresh():
    Board([]).reduce()
    return Board([])
"""
    assert lines(body, "XLA302") == []
    assert lines(body, "XLA308") == []


@pytest.mark.parametrize(
    "read",
    [
        'print(board.made["loss"].average)',
        'print(board.made["loss"].value())',
        "print([m.average for m in board.made.values()])",
        "print({k: m.value() for k, m in board.made.items()})",
    ],
)
def test_a_read_of_some(read: str) -> None:
    body = f"""\
def log(rank, name):
    board = Board([name])
    board.reduce()
    if rank == 0:
        {read}


def later(board, rank):
    board.reduce()
    torch_xla.sync()
    print(board.one.value())
    if rank == 0:
        {read}
"""
    assert lines(body, "XLA308") == [read]


def test_a_read_in_another_method() -> None:
    body = """\
class Log:
    def __init__(self, path):
        self.path = path
        self.meters = defaultdict(Meter)

    def reduce(self):
        for meter in self.meters.values():
            meter.reduce()

    def dump(self):
        if self.path is None or dist.get_rank() != 0:
            return
        self.path.write_text(str({k: m.average for k, m in self.meters.items()}))

    def describe(self):
        if dist.get_rank() == 0:
            print({k: m.label for k, m in self.meters.items()})

    def every(self, rows):
        for row in rows:
            yield row
            self.reduce()
            self.dump()
"""
    wrong = "self.path.write_text(str({k: m.average for k, m in self.meters.items()}))"
    assert lines(body, "XLA308") == [wrong]


def test_the_collective_runs_before_the_read() -> None:
    """`torch_xla.sync()` is written where the meter is reduced."""
    text = HEAD.replace('device="xla"', 'device="cuda"').replace("import torch_xla\n", "")
    body = """\
def log(rank, name):
    board = Board([name])
    board.one.reduce()
    if rank == 0:
        print(board.one.average)
"""
    text = rewrite_source(parse((text + body).encode(), Path("script.py"))).data.decode()
    assert "    board.one.reduce()\n    torch_xla.sync()\n" in text
    again = check_source(parse(text.encode(), Path("script.py")), Config(select=("XLA308",)))
    assert again == ()


def test_meters_that_the_step_reduces() -> None:
    body = """\
def train(model, loader, optimizer, rank):
    board = Board(["loss"])
    for x in loader:
        with torch_xla.step():
            loss = model(x.to("xla")).mean()
            loss.backward()
            optimizer.step()
            board.made["loss"].update(loss.detach())
            board.reduce()
        if rank == 0:
            print(board.made["loss"].average)
"""
    assert lines(body, "XLA308") == []
