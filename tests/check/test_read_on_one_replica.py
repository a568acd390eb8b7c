"""XLA305: a function of another file that reads, called in the step by the first replica alone."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder

BOARD = """
class Board:
    def __init__(self, axes):
        self.axes = axes

    def histogram(self, tag, values):
        if self.axes is not None:
            self.axes.hist(values.cpu().numpy(), label=tag)

    def size(self, tag, values):
        self.axes.set_title(tag, len(values.shape))
"""
METER = """
import torch

from board import Board


class Meter:
    def __init__(self, board: Board):
        self.board = board
        self.rank = torch.distributed.get_rank()
        self.values = []

    def add(self, value):
        self.values.append(value.detach())

    def finish(self):
        total = torch.stack(self.values).sum().cuda()
        BEFORE
        if self.rank == 0:
            self.board.CALL("loss", total)
"""
TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from board import Board
from meter import Meter


class Runner:
    def __init__(self, board):
        self.net = DDP(torch.nn.Linear(4, 1).cuda())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.meter = Meter(board)

    def train_pass(self, x, turn):
        loss = self.net(x.cuda()).square().mean()
        self.meter.add(loss)
        if turn % 4 == 3:
            self.meter.finish()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def main():
    dist.init_process_group("nccl")
    runner = Runner(Board(None))
    for turn in range(8):
        runner.train_pass(torch.ones(2, 4), turn)
"""


@pytest.mark.parametrize(
    ("call", "before", "reported"),
    [
        ("histogram", "total = total / 2", [19]),
        ("size", "total = total / 2", []),  # reads no value
        ("histogram", "torch.distributed.reduce(total, dst=0)", []),  # leaves nothing pending
    ],
)
def test_a_method_of_another_file(
    tmp_path: Path, call: str, before: str, reported: list[int]
) -> None:
    (tmp_path / "board.py").write_text(BOARD.lstrip())
    (tmp_path / "meter.py").write_text(
        METER.lstrip().replace("CALL", call).replace("BEFORE", before)
    )
    (tmp_path / "train.py").write_text(TRAIN.lstrip())
    found = check_paths([tmp_path], Config(select=("XLA305",))).findings
    assert [(one.path.name, one.line) for one in found] == [("meter.py", line) for line in reported]


def test_a_method_that_saves_its_own_object(tmp_path: Path) -> None:
    script = """
        import torch


        class Net(torch.nn.Linear):
            def keep(self):
                torch.save(self, "net.pt")


        net = Net(2, 2).cuda()
        net.keep()
    """
    (tmp_path / "train.py").write_text(dedent(script))
    done = rewrite_folder(tmp_path, processes=1).files[0]
    assert [note.line for note in done.findings if note.rule == "save"] == [7]
