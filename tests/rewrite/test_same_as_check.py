"""Findings of a check that the rewrite of a folder reports as well, whatever lines it adds and removes."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder

TRAIN = """\
import torch
import torch.distributed

import helpers
from evaluation import evaluate


def main():
    helpers.setup()
    rank = torch.distributed.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.randn(8, 4).cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(evaluate(model, rank, torch.device("cuda")), flush=True)


if __name__ == "__main__":
    main()
"""
EVALUATION = """\
import torch
import torch.distributed

import helpers


@torch.no_grad()
def evaluate(model, rank, device):
    values = [model(torch.randn(8, 4).to(device)).mean().item() for _ in range(3)]
    gathered = helpers.gather(torch.tensor(values, device=device))
    mean = 0.0
    if rank == 0:
        mean = gathered.mean().item()
    torch.distributed.barrier()
    return mean
"""
SETUP = """\


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
"""
GATHER = """\


def gather(tensor):
    return torch.cat(dist_nn.functional.all_gather(tensor))
"""
IMPORTS = "import torch\nimport torch.distributed as dist\nimport torch.distributed.nn as dist_nn\n"


@pytest.mark.parametrize("helpers", [GATHER + SETUP, SETUP + GATHER], ids=["above", "below"])
def test_a_collective_of_a_file_that_the_rewrite_changes(tmp_path: Path, helpers: str) -> None:
    """The lines of its functions are looked for in the file as it is now, not as it is on the disk."""
    files = {"train.py": TRAIN, "evaluation.py": EVALUATION, "helpers.py": IMPORTS + helpers}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    checked = [
        (f.path.name, f.line)
        for f in check_paths([tmp_path], Config()).findings
        if f.code == "XLA308"
    ]
    done = rewrite_folder(tmp_path, processes=1)
    left = [(f.name.name, n.line) for f in done.files for n in f.findings if n.rule == "XLA308"]
    assert left == checked == [("evaluation.py", 13)]


NET = """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x, weights):
        if weights.sum() > 0:
            x = x * 2
        return self.fc(x)
"""
STEP = """\
import torch

from net import Net


def train(loader):
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, weights in loader:
        loss = net(x.cuda(), weights.cuda()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_forward_whose_arguments_another_file_makes(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(STEP)
    checked = [
        (f.path.name, f.line)
        for f in check_paths([tmp_path], Config()).findings
        if f.code == "XLA110"
    ]
    done = rewrite_folder(tmp_path, processes=1)
    left = [(f.name.name, n.line) for f in done.files for n in f.findings if n.rule == "XLA110"]
    assert left == checked == [("net.py", 10)]
