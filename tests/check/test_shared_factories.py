"""A function that makes the optimizers of several programs, each with a model of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import check_and_mend

FACTORY = """
from torch import optim


def create_optimizer(args, model):
    return optim.AdamW(model.parameters(), lr=args.lr)
"""
MOVED = """
import torch
from factory import create_optimizer


def main(args):
    model = torch.nn.Linear(4, 1)
    model.to("cuda")
    return create_optimizer(args, model)
"""
UNMOVED = """
import torch
from factory import create_optimizer


def main(args):
    net = torch.nn.Linear(4, 1)
    return create_optimizer(args, net)
"""
LATE = UNMOVED.replace("return create", "made = create") + '    net.to("cuda")\n    return made\n'


SHARDED = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from factory import create_optimizer


def main(args):
    model = FSDP(torch.nn.Linear(4, 1), device_id=torch.cuda.current_device())
    return create_optimizer(args, model)
"""


@pytest.mark.parametrize(
    ("other", "reported"),
    [(UNMOVED, False), (LATE, True), (SHARDED, False)],
    ids=["no move", "a late move", "sharded"],
)
def test_a_shared_factory_is_judged_by_the_model_of_each_program(
    tmp_path: Path, other: str, reported: bool
) -> None:
    files = {"factory.py": FACTORY, "moved.py": MOVED, "other.py": other}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = check_and_mend([tmp_path], Config())
    early = [one for one in found.findings if one.code == "XLA805"]
    assert bool(early) is reported
    assert all(one.path.name == "other.py" or "other.py" in one.message for one in early)
