"""Some replicas wait for the device, by a function of another file, while DDP's broadcast is pending."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file

UTIL = """
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def is_main_process():
    return dist.get_rank() == 0


def timed(model, x):
    start = time.time()
    model(x)
    torch.cuda.synchronize()
    return time.time() - start


def benchmark(model):
    return timed(model.cuda(), torch.randn(2, 8).cuda())


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def wrapped(model, rank):
    return DistributedDataParallel(model.cuda(), device_ids=[rank])
"""
MAIN = """
import torch
import torch.distributed as dist
import utils


def main(net, loader, optimizer, rank):
{body}
    for x in loader:
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
"""
WRAP = "    model = utils.wrapped(net, rank)\n"
ALONE = "    if utils.is_main_process():\n        print(utils.benchmark(model.module))"
REPORTED = {
    "under the test": WRAP + ALONE,
    "after a leave of the others' turn": WRAP
    + "    for _ in range(1):\n        if rank != 0:\n            continue\n"
    + "        utils.benchmark(model.module)",
    "a broadcast": "    model = net.cuda()\n    dist.broadcast(model.weight, 0)\n"
    + ALONE.replace(".module", ""),
    "a wait of some runs": WRAP + "    if loader:\n        torch.cuda.synchronize()\n" + ALONE,
}
SILENT = {
    "before the wrapping": ALONE.replace("model.module", "net") + "\n" + WRAP,
    "a wait of all": WRAP + "    torch.cuda.synchronize()\n" + ALONE,
    "no wait": WRAP + ALONE.replace("benchmark", "parameters"),
    "all replicas": WRAP + "    print(utils.benchmark(model.module))",
    "one process": "    model = net.cuda()\n" + ALONE.replace(".module", ""),
}


def _codes(body: str, folder: Path) -> list[str]:
    (folder / "utils.py").write_text(UTIL)
    (folder / "main.py").write_text(MAIN.format(body=body))
    return [f.message for f in check_file(folder / "main.py", Config()) if f.code == "XLA305"]


@pytest.mark.parametrize("name", REPORTED)
def test_a_call_of_some_that_waits_is_reported(name: str, tmp_path: Path) -> None:
    (message,) = _codes(REPORTED[name], tmp_path)
    assert "with a collective pending" in message


@pytest.mark.parametrize("name", SILENT)
def test_where_all_agree_nothing_is_said(name: str, tmp_path: Path) -> None:
    assert _codes(SILENT[name], tmp_path) == []
