"""`logging.basicConfig` that runs as a file is imported: the first call in the process counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder

MAIN = """\
import logging

import torch.distributed as dist
import torch.multiprocessing as mp


def worker(rank, count):
    logging.CONFIGURE(format="%(asctime)s %(message)s")
    dist.init_process_group("nccl", rank=rank, world_size=count)
    import trainer

    trainer.train(rank)


if __name__ == "__main__":
    mp.spawn(worker, args=(8,), nprocs=8)
"""
TRAINER = """\
import logging

import torch

logging.basicConfig(level=logging.INFO)


def train(rank):
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.randn(8, 4).cuda()).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("call", "forced"), [("basicConfig", False), ("warning", True)])
def test_a_call_that_another_one_may_precede_is_left(
    tmp_path: Path, call: str, forced: bool
) -> None:
    (tmp_path / "main.py").write_text(MAIN.replace("CONFIGURE", call))
    (tmp_path / "trainer.py").write_text(TRAINER)
    done = rewrite_folder(tmp_path, processes=1)
    files = {file.name.name: file.after.decode() for file in done.files}
    assert ("level=logging.INFO, force=True" in files["trainer.py"]) == forced
    left = [str(name) for name, note in done.left_to_do if note.rule == "logging-setup"]
    assert left == ([] if forced else ["trainer.py"])
