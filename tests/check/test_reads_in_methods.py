"""XLA201: a read in a function that a model's `forward` calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder

MODEL = """
import numpy as np
import torch
from torch import nn
DATA

class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rays = ATTRIBUTE
        self.sizes = np.asarray(sizes)

    def helper(self, K):
        READ

    def forward(self, K):
        return self.layer(K).mean() * CALL
"""
TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from net import Net


def main(loader):
    dist.init_process_group("nccl")
    model = DDP(Net([3, 4]).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
RAYS = """
import torch
from torch import nn


class Rays(nn.Module):
    def compute(self, pose, intrinsics):
        fx, cy = intrinsics[:, :, 0], intrinsics[:, :, 1]
        height = int(2 * cy.max().item())
        return pose.sum() * height

    @torch.no_grad()
    def forward(self, batch):
        pose, intrinsics = batch["pose"], batch["intrinsics"]
        return self.compute(pose, intrinsics)
"""


def lines(folder: Path, read: str, call: str, data: str = "", attribute: str = "None") -> list[str]:
    model = MODEL.replace("READ", read).replace("CALL", call)
    model = model.replace("DATA", data).replace("ATTRIBUTE", attribute)
    (folder / "net.py").write_text(model)
    (folder / "train.py").write_text(TRAIN)
    (folder / "rays.py").write_text(RAYS)
    found = check_paths([folder], Config(select=("XLA201",))).findings
    return [one.path.read_text().splitlines()[one.line - 1].strip() for one in found]


@pytest.mark.parametrize(
    "read",
    [
        "return K.max().item()",
        "return K[:, 0].mean().item()",
        "return K.item()",
    ],
)
def test_a_read_in_a_method_that_forward_calls_is_found(tmp_path: Path, read: str) -> None:
    assert lines(tmp_path, read, "self.helper(K)") == [read]


def test_a_read_of_a_part_by_a_name_is_found(tmp_path: Path) -> None:
    read = "a, b = K[0], K[1]\n        return 2 * b.max().item()"
    assert lines(tmp_path, read, "self.helper(K)") == ["return 2 * b.max().item()"]


def test_a_read_in_another_files_forward_without_gradients_is_found(tmp_path: Path) -> None:
    found = lines(tmp_path, "return 1", "self.rays(K)", "from rays import Rays", "Rays()")
    assert found == ["height = int(2 * cy.max().item())"]


@pytest.mark.parametrize(
    ("read", "call"),
    [
        ("return K.max().item()", "self.helper(self.sizes)"),  # an array of the host
        ("return K.max().item()", "1"),  # nothing calls it
        ("return np.asarray(self.sizes).max().item()", "self.helper(K)"),
    ],
)
def test_a_read_of_the_host_or_outside_of_the_step_is_left_alone(
    tmp_path: Path, read: str, call: str
) -> None:
    assert lines(tmp_path, read, call) == []


RANGED = """
import torch


def ranged(function):
    def run(*args, **kwargs):
        torch.cuda.nvtx.range_push(function.__name__)
        result = function(*args, **kwargs)
        torch.cuda.nvtx.range_pop()
        return result

    return run
"""
LOOP = """
import profiling
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Loop:
    def __init__(self, net, optimizer, rounds):
        self.net = net.cuda()
        self.ddp = DDP(self.net)
        self.optimizer = optimizer
        self.rounds = rounds
        self.device = torch.device("cuda")

    def stage(self, batch):
        return {key: value.to(self.device) for key, value in batch.items()}

    @profiling.ranged
    def accumulate(self, iterator):
        self.optimizer.zero_grad()
        total = 0.0
        for _ in range(self.rounds):
            batch = next(iterator)
            loss = self.ddp(**self.stage(batch)).sum()
            loss.backward()
            total += TOTAL

    @profiling.ranged
    def update(self):
        self.optimizer.step()

    def train(self, loader):
        iterator = iter(loader)
        for _ in range(self.rounds * 10):
            self.accumulate(iterator)
            self.update()


def main(net, loader):
    dist.init_process_group("nccl")
    Loop(net, torch.optim.SGD(net.parameters(), lr=0.1), 2).train(loader)
"""


@pytest.mark.parametrize(
    ("total", "count"), [("loss.detach().cpu() / self.rounds", 1), ("loss.detach()", 0)]
)
def test_micro_batches_of_a_decorated_method(tmp_path: Path, total: str, count: int) -> None:
    (tmp_path / "train.py").write_text(LOOP.replace("TOTAL", total))
    (tmp_path / "profiling.py").write_text(RANGED)
    *_, file = rewrite_folder(tmp_path, processes=1).files
    assert [note.rule for note in file.findings].count("XLA208") == count
