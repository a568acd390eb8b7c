"""GPUs that a launching script gives its processes, where only what it imports names torch."""

from __future__ import annotations

from pathlib import Path

from migrate.rewrite.folder import rewrite_folder

MAIN = """\
import multiprocessing as mp
import os

from train import train


def work(rank, count, devices):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(devices[rank])
    train(rank, count)


if __name__ == "__main__":
    devices = [0, 1]
    for rank in range(len(devices)):
        mp.Process(target=work, args=(rank, len(devices), devices)).start()
"""
TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(rank, count):
    dist.init_process_group("nccl", rank=rank, world_size=count)
    model = DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 2).cuda()).mean().backward()
        optimizer.step()
"""


def test_a_choice_of_gpus_by_the_rank_goes(tmp_path: Path) -> None:
    """`devices[rank]` raised: there are as many replicas as chips."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "train.py").write_text(TRAIN)
    files = {
        file.name.name: file.after.decode() for file in rewrite_folder(tmp_path, processes=1).files
    }
    assert "torch_xla.launch(work" in files["main.py"]
    assert "CUDA_VISIBLE_DEVICES" not in files["main.py"]
