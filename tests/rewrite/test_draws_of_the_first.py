"""What only the first replica did and now all do, with random numbers in it: the others draw as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """\
import os
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def batch():
    rows = {draw}
    return rows.cuda()


@torch.no_grad()
def estimate_loss():
    out = {{}}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(4)
        for k in range(4):
            losses[k] = model(batch()).mean().item()
        out[split] = losses.mean()
    model.train()
    return out


dist.init_process_group("nccl")
master_process = dist.get_rank() == 0
model = DDP(torch.nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
raw_model = model.module
iter_num, best = 0, 1e9
while True:
    if iter_num % 10 == 0 and master_process:
        losses = estimate_loss()
        print(losses["val"])
        if losses["val"] < best:
            best = losses["val"]
            if iter_num > 0:
                checkpoint = {{"model": raw_model.state_dict(), "best": best}}
                torch.save(checkpoint, "last.pt")
    optimizer.zero_grad()
    model(batch()).mean().backward()
    optimizer.step()
    iter_num += 1
    if iter_num > 100:
        break
"""
OF_TORCH = "torch.randn(8, 4)"


@pytest.mark.parametrize(
    ("draw", "forks", "reports"),
    [
        (OF_TORCH, True, False),
        ("torch.full((8, 4), random.random())", False, True),
        ("torch.randn(8, 4) * random.random()", False, True),
        ("torch.randn(8, 4, generator=torch.Generator().manual_seed(0))", False, False),
        ("torch.ones(8, 4)", False, False),
    ],
)
def test_the_others_draw_as_before(draw: str, forks: bool, reports: bool) -> None:
    done = rewrite_source(parse(SCRIPT.format(draw=draw).encode(), Path("train.py")))
    text = done.data.decode()
    assert "        losses = estimate_loss()\n" in text
    fork = "with torch.random.fork_rng(devices=[], enabled=not master_process):\n"
    assert (f"{fork}            losses = estimate_loss()\n" in text) is forks
    said = [note for note in done.findings if "random numbers, now on all replicas" in note.message]
    assert [note.line for note in said] == ([35] if reports else [])
    again = rewrite_source(parse(done.data, Path("train.py")))
    assert again.data == done.data
    assert not [note for note in again.findings if note.rule == "rng"]
