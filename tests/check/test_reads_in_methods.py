"""XLA201: a read in a function that a model's `forward` calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

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


LOOP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def ranged(function):
    def run(*args, **kwargs):
        with torch.profiler.record_function(function.__name__):
            return function(*args, **kwargs)

    return run


class Loop:
    def __init__(self, model, optimizer, rounds):
        self.model, self.optimizer, self.rounds = DDP(model.cuda()), optimizer, rounds

    def stage(self, batch):
        return {key: value.cuda() for key, value in batch.items()}

    @ranged
    def backward(self, batches):
        self.optimizer.zero_grad()
        total = 0.0
        for _ in range(self.rounds):
            loss = self.model(**self.stage(next(batches))).sum()
            loss.backward()
            total += TOTAL
        return total

    @ranged
    def update(self):
        self.optimizer.step()

    def train(self, loader, steps):
        batches = iter(loader)
        for _ in range(steps):
            self.backward(batches)
            self.update()


def main(model, loader, optimizer):
    dist.init_process_group("nccl")
    Loop(model, optimizer, 2).train(loader, 100)
"""


@pytest.mark.parametrize(
    ("total", "count"), [("loss.detach().cpu() / self.rounds", 1), ("loss.detach()", 0)]
)
def test_micro_batches_of_a_decorated_method(tmp_path: Path, total: str, count: int) -> None:
    (tmp_path / "train.py").write_text(LOOP.replace("TOTAL", total))
    findings = check_paths([tmp_path], Config(select=("XLA208",))).findings
    assert len(findings) == count
