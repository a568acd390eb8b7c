"""A step that computes what each replica decides by a value of its own: the finding says that they part."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(rank, loader, optimizer):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).cuda(rank), device_ids=[rank])
    for x in loader:
        loss = model(x.cuda()).mean()
        worst = loss.detach().clone()
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        if VALUE > 10:
            loss = loss * 0.0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(("value", "part"), [("loss", True), ("worst", False)])
def test_a_branch_by_a_value_of_ones_own(value: str, part: bool) -> None:
    source = parse(SCRIPT.replace("VALUE", value).encode(), Path("train.py"))
    findings = rewrite_source(source).findings
    messages = [finding.message for finding in findings if finding.own_code == "XLA110"]
    assert len(messages) == 1
    assert ("replicas that decide differently" in messages[0]) == part
