"""A validation of the first replica, run by all of them: the training is the original's on every rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands

SCRIPT = """
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
    ddp = DDP(model, device_ids=[rank])
    opt = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(100 + rank)
    if rank == 0:
        validation = DataLoader(TensorDataset(torch.rand(12, 4)), batch_size=4, shuffle=True)
        log = open("log.txt", "w")
    for step in range(4):
        x = torch.randn(8, 4).cuda()
        out = ddp(x)
        loss = out.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 2 == 0:
            model.eval()
            total = 0.0
            with torch.no_grad():
                for (x,) in validation:
                    total += F.l1_loss(model(x.cuda()), torch.zeros(4, 1, device="cuda")).item()
            print(step, total, F.l1_loss(out, torch.zeros_like(out)).item())
            log.write(f"{total}")
            model.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.mark.long
def test_it_trains_as_before_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(commands, ["prove", "--json", str(script)])
    assert json.loads(done.stdout)["verdict"] == "match", done.stderr
