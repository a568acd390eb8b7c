"""What a rule says of another construct than its own has that construct's code, for both commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import findings_of

LOOP = """\
import torch
import torch.distributed as dist


def train(model, loader, optimizer):
    model.cuda()
    for x in loader:
        loss = model(x.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        {line}
        optimizer.step()
"""
SPAWN = "import torch.multiprocessing as mp\n\nmp.spawn(lambda rank: print(rank), nprocs=4)\n"
BARRIER = """\
import torch.distributed as dist


def prepare(rank):
    if rank == 0:
        dist.barrier()
"""
ADDRESS = "import os\nimport torch.distributed as dist\n\nurl = os.environ['MASTER_ADDR']\n"


def codes(folder: Path, text: str, line: int) -> set[str]:
    script = folder / "train.py"
    script.write_text(text)
    return {one.code for one in findings_of([script], Config(root=folder))[1] if one.line == line}


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (SPAWN, 3, {"XLA707", "XLA708", "XLA713"}),
        (BARRIER, 6, {"XLA302"}),
        (ADDRESS, 4, {"XLA710"}),
        (LOOP.format(line="optimizer.param_groups[0]['lr'] = loss.item()"), 11, {"XLA201"}),
        (LOOP.format(line="optimizer.param_groups[0]['lr'] = float(loss)"), 11, {"XLA202"}),
    ],
)
def test_a_line(tmp_path: Path, text: str, line: int, expected: set[str]) -> None:
    assert codes(tmp_path, text, line) == expected
