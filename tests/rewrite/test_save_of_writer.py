"""Saves whose path only the first replica has, below tests that follow from options."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.rules.saving.saving import WRITERS_OF_GROUPS
from migrate.syntax.source import parse

MAIN = """
import os

import torch.distributed as dist

from loop import training_loop


def main(c, net, optimizer):
    if dist.get_rank() != 0:
        c.run_dir = None
    else:
        c.run_dir = os.path.join("runs", "0")
    training_loop(net=net, optimizer=optimizer, **c)
"""
LOOP = """
import os

import torch
import torch.distributed as dist


def training_loop(run_dir=".", dump=500, total=2000, batch_size=64, net=None, optimizer=None, better=False):
    net.cuda()
    seen = 0
    turn = 0
    while True:
        seen += batch_size
        done = seen >= total * 1000
        if (dump is not None) and (done or turn % dump == 0) and turn != 0 and dist.get_rank() == 0:
            torch.save(optimizer.state_dict(), os.path.join(run_dir, f"{seen:06d}.pt"))
        if better and dist.get_rank() == 0:
            torch.save(net.state_dict(), "best.pt")
        turn += 1
        if done:
            break
"""


def test_the_writer_alone_computes_a_path_that_the_others_do_not_have(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text(MAIN)
    (folder / "loop.py").write_text(LOOP)
    done = rewrite_folder(folder, processes=1)
    loop = next(one for one in done.files if one.name.name == "loop.py")
    text = loop.after.decode()
    assert "        if (dump is not None) and (done or turn % dump == 0) and turn != 0:\n" in text
    assert (
        'os.path.join(run_dir, f"{seen:06d}.pt") if xm.is_master_ordinal(local=False) else None'
        in text
    )
    assert 'xm.save(net.state_dict(), "best.pt", master_only=False)' in text  # `better` may differ


PARALLEL = """
import os

import torch
import torch.distributed as dist
from torch import nn


class Checkpoints:
    def __init__(self):
        self.tp_rank = dist.get_rank() % 2
        self.dp_rank = dist.get_rank() // 2

    def path(self, step):
        return f"weights_{self.tp_rank}_{step}.pth"

    def save(self, model, step):
        path = self.path(step)
        if self.dp_rank == 0:
            torch.save(model.state_dict(), path)


def main():
    dist.init_process_group("nccl")
    model = nn.Linear(2, 2).cuda()
    checkpoints = Checkpoints()
    checkpoints.save(model, 1)
"""


@pytest.mark.parametrize(
    "test",
    [
        "self.dp_rank == 0",
        "0 == self.dp_rank",
        "not self.dp_rank",
        "mpu.get_data_parallel_rank() == 0",
        "self.dp_rank == 0 and dist.get_rank() < 4",
    ],
)
def test_a_file_of_each_group_stays_and_is_reported(test: str) -> None:
    text = PARALLEL.replace("self.dp_rank == 0:", f"{test}:").encode()
    done = rewrite_source(parse(text, Path("train.py")))
    assert "            torch.save(model.state_dict(), path)\n" in done.data.decode()
    (note,) = (note for note in done.findings if note.rule == "save")
    assert note.message.endswith(WRITERS_OF_GROUPS)
