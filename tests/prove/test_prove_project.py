"""A project of several files is proven from its script alone, or against a rewritten copy of its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from migrate.rewrite.write import rewrite_into
from tests.waiting import LIMIT

pytestmark = [pytest.mark.xla, pytest.mark.long]

MAIN = """\
import torch

from engine.trainer import Trainer
from net import Net

if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(Net()).fit()
"""
TRAINER = """\
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RATE = float((Path(__file__).parents[1] / "rate.txt").read_text())


class Trainer:
    def __init__(self, model):
        dist.init_process_group("nccl")
        self.device = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.device)
        model = model.cuda(self.device)
        self.model = DistributedDataParallel(model, device_ids=[self.device])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def fit(self):
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(2):
            x = torch.randn(4, 6, generator=generator).cuda(self.device)
            loss = self.model(x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        dist.destroy_process_group()
"""
NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(18.0).view(3, 6) / 20)

    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in (
        ("main.py", MAIN),
        ("engine/__init__.py", ""),
        ("engine/trainer.py", TRAINER),
        ("net.py", NET),
        ("rate.txt", "0.1"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def proven(project: Path, *options: object) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [Path(sys.executable).with_name("migrate"), "prove", "main.py", "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        cwd=project,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr


def test_from_the_script_alone(project: Path) -> None:
    proof, said = proven(project)
    assert proof["verdict"] == "match", proof["message"]
    assert "engine/trainer.py" in next(text for text in said.splitlines() if "rewrote" in text)
    assert (project / "engine" / "trainer.py").read_text() == TRAINER


def test_against_a_rewritten_copy_whose_edit_counts(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    rewrite_into(project, copy)
    trainer = copy / "engine" / "trainer.py"
    trainer.write_text(trainer.read_text().replace("lr=RATE", "lr=2 * RATE"))
    proof, _ = proven(project, "--rewritten", copy)
    assert proof["verdict"] == "differs"
    assert "learning rate" in proof["message"]
