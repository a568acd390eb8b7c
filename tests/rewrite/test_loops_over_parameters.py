"""Loops over parameters without gradients: a part of the training step, never an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

TRAIN = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from low import Low


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(torch.nn.Linear(8, 8).to(local_rank), device_ids=[local_rank])
    optimizer = Low(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(2, 8).to(local_rank)
        loss = model(x).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""
PROJECTOR = """
import torch


class Projector:
    def __init__(self):
        self.matrix = None

    def project(self, grad, step):
        if self.matrix is None:
            self.matrix = make(grad)
        return torch.matmul(grad, self.matrix.t())


def make(grad):
    generator = torch.Generator(device=grad.device).manual_seed(3)
    size = grad.shape[-1]
    return torch.randn((size, size), generator=generator, device=grad.device).to(grad.device)
"""
BODIES = {
    "step": """
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = self.projector.project(p.grad, 0)
                p.add_(grad, alpha=-group["lr"])
""",
    "method": """
    def step(self, closure=None):
        with torch.no_grad():
            self.update()

    @torch.no_grad()
    def update(self):
        everything = [p for group in self.param_groups for p in group["params"]]
        for weight in everything:
            grad = self.projector.project(weight.grad, 0)
            weight.add_(grad, alpha=-0.1)
""",
    "function": """
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            update(group["params"], self.projector)


@torch.no_grad()
def update(weights, model):
    for weight in weights:
        grad = model.project(weight.grad.to(weight.device), 0)
        weight.add_(grad, alpha=-0.1)
""",
}


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("body", sorted(BODIES))
def test_an_update_gets_no_steps_of_its_own(tmp_path: Path, body: str, style: Style) -> None:
    optimizer = (
        "import torch\nfrom projector import Projector\n\n\nclass Low(torch.optim.Optimizer):\n"
        '    def __init__(self, params, lr):\n        super().__init__(params, {"lr": lr})\n'
        "        self.projector = Projector()\n" + BODIES[body]
    )
    for name, text in (("train", TRAIN), ("projector", PROJECTOR), ("low", optimizer)):
        (tmp_path / f"{name}.py").write_text(text)
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    texts = {file.name.name: file.after.decode() for file in done.files}
    assert "step():" not in texts["low.py"].replace("def step", "")
    assert ".step():" in texts["train.py"]


AVERAGE = """
import copy

import torch


class Average(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.module = copy.deepcopy(model).cuda()

    def renew(self, model, rule):
        with torch.no_grad():
            for mine, other in zip(self.module.state_dict().values(), model.state_dict().values()):
                mine.copy_(rule(mine, other.to("cuda")))
"""


def test_the_average_of_a_model_is_no_evaluation(tmp_path: Path) -> None:
    """`rule` counted as a model that runs in each turn."""
    (tmp_path / "average.py").write_text(AVERAGE)
    done = rewrite_folder(tmp_path, processes=1)
    assert not [note for _, note in done.left_to_do if "rule" in note.message]
    assert ".step():" not in done.files[0].after.decode()
