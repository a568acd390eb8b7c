"""Ranks that draw different numbers on GPUs do so on XLA replicas, and a proof sees where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import prove
from migrate.prove.settings import Settings
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.options import RewriteOptions
from tests.waiting import LIMIT

SCRIPT = """\
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

AT_IMPORT


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    SEED
    net = DDP(nn.Linear(4, 4).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.zeros(8, 4).cuda()
        noise = torch.randn_like(x)
        loss = (net(x + noise) - noise).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

pytestmark = pytest.mark.long


def files(folder: Path, seed: str, at_import: str, options: RewriteOptions) -> tuple[Path, Path]:
    original, rewritten = folder / "train.py", folder / "train_xla.py"
    original.write_text(SCRIPT.replace("SEED", seed).replace("AT_IMPORT", at_import))
    rewritten.write_bytes(rewrite_file(original, options=options).data)
    return original, rewritten


@pytest.mark.parametrize(
    ("seed", "at_import", "style"),
    [
        ("pass", "", "native"),
        ("pass", "", "portable"),
        ("torch.manual_seed(7 + dist.get_rank())", "", "native"),
        ("pass", "torch.manual_seed(3)", "native"),
    ],
)
def test_the_rewrite_draws_as_the_original(
    tmp_path: Path, seed: str, at_import: str, style: str
) -> None:
    options = RewriteOptions(style="portable" if style == "portable" else "native")
    original, rewritten = files(tmp_path, seed, at_import, options)
    proof = prove(original, rewritten, replicas=2, settings=Settings(timeout=LIMIT))
    assert proof.verdict is ProofVerdict.MATCH, proof.message


def test_replicas_that_draw_the_same_are_told_apart_from_gpus(tmp_path: Path) -> None:
    original, rewritten = files(tmp_path, "pass", "", RewriteOptions())
    lines = rewritten.read_text().splitlines()
    rewritten.write_text("\n".join(line for line in lines if "manual_seed" not in line) + "\n")
    proof = prove(original, rewritten, replicas=2, settings=Settings(timeout=LIMIT))
    assert proof.verdict is ProofVerdict.DIFFERS
    assert "different random numbers in the original and the same in the rewrite" in proof.message
    line = original.read_text().splitlines().index("        noise = torch.randn_like(x)") + 1
    assert f"train.py:{line} in the original" in proof.message
