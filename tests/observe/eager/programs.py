"""Program for torch_tpu that a test runs: `programs.py KIND`, in two processes that mp.spawn starts."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn


def train(rank: int, kind: str, port: str) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", port
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = "2"
    dist.init_process_group("tpu_dist", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    model = model.to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if kind == "still" else 0.1)
    for rows in (8, 8, 3):
        inputs = torch.randn(rows, 6).to("tpu")
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        (early if kind == "early" else optimizer).step()
    if kind == "cholesky" and rank == 1:
        torch.linalg.cholesky(torch.eye(3, device="tpu"))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=tuple(sys.argv[1:]), nprocs=2)
