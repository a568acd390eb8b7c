"""Reinforcement learning: values that a library hands out, and a buffer in another file."""

from __future__ import annotations

from pathlib import Path

from migrate.rewrite.folder import rewrite_folder

BUFFER = """\
import torch
import torch.distributed as dist


class Norm(torch.nn.Module):
    def __init__(self, width, device):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width, device=device))

    def forward(self, x):
        self.update(x)
        return x - self.mean

    def update(self, x):
        total = x.sum(0)
        dist.all_reduce(total)
        self.mean.copy_(total)


class Ring:
    def __init__(self, width, size, device):
        self.values, self.size, self.at = torch.zeros(size, width, device=device), size, 0

    def extend(self, x):
        at = self.at % self.size
        self.values[at] = x
        self.at += 1
"""
TRAIN = """\
import torch
import torch.distributed as dist
import wandb
from buffer import Norm, Ring
from library import make, pick


def main(rank, device):
    environment, net = make(), torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    norm, ring = Norm(4, "cuda"), Ring(4, 100, "cuda")
    normalize = norm.forward
    x = environment.reset()
    for step in range(1000):
        x, rewards = environment.step(normalize(x))
        ring.extend(x)
        for _ in range(2):
            loss = net(normalize(pick(ring)).cuda()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        logs = {"rewards": rewards.mean()}
        if rank == 0:
            wandb.log({"step": step, **logs})


main(dist.get_rank(), "cuda")
"""


def test_the_replicas_end_their_graphs_and_the_buffers_number_is_reported(tmp_path: Path) -> None:
    (tmp_path / "buffer.py").write_text(BUFFER)
    (tmp_path / "train.py").write_text(TRAIN)
    files = {str(file.name): file for file in rewrite_folder(tmp_path, processes=1).files}
    assert b"        torch_xla.sync()\n        if rank == 0:\n" in files["train.py"].after
    findings = [(finding.line, finding.rule) for finding in files["buffer.py"].findings]
    assert (26, "XLA112") in findings
