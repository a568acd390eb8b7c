"""Replicas that a value decides which a test of the rank has set: `kind` of `if args.kind == "masked"`."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.check.project import check_paths

HEAD = """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


"""
TRAINING = """\
    model = DDP(torch.nn.Linear(4, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        shares = torch.stack([loss.detach(), loss.detach()])
        if {test}:
            shares = shares / 3
        dist.all_reduce(shares)
"""
SCRIPT = (
    HEAD
    + """\
def main(args, loader):
    dist.init_process_group("nccl")
    args.rank = int(os.environ["RANK"])
    if {asked}:
        args.kind = {first}
    else:
        args.kind = {second}
"""
    + TRAINING
)


@pytest.mark.parametrize(
    ("asked", "first", "second", "test", "parts"),
    [
        ("args.rank == 0", "'a'", "'b'", "args.kind == 'a'", True),
        ("args.rank * 4 < args.size", "'a'", "'b'", "args.kind == 'a'", True),
        ("args.rank == 0", "True", "False", "args.kind", True),
        ("args.rank == 0", "'a'", "'b'", "args.rank / args.size < 0.5", True),
        ("args.rank == 0", "'a'", "'a'", "args.kind == 'a'", False),
        ("args.size == 8", "'a'", "'b'", "args.kind == 'a'", False),
        ("args.rank == 0", "'a'", "'b'", "args.other == 'a'", False),
    ],
)
def test_values_set_below_a_rank_test(
    tmp_path: Path, asked: str, first: str, second: str, test: str, parts: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(asked=asked, first=first, second=second, test=test))
    codes = {hit.code for hit in check_file(script, Config())}
    assert ("XLA314" in codes) is parts


FUNCTION = (
    HEAD
    + """\
def kind_of(rank, size):
{body}


def main(args, loader):
    dist.init_process_group("nccl")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind = kind_of(rank, size)
"""
    + TRAINING
)


@pytest.mark.parametrize(
    ("body", "test", "parts"),
    [
        ("if rank * 4 < size: return 'a'\n    return 'b'", "kind == 'a'", True),
        ("if rank == 0: return 'a'\n    return 'b'", "kind_of(rank, size) == 'a'", True),
        ("kind = 'b'\n    if rank * 4 < size: kind = 'a'\n    return kind", "kind == 'a'", True),
        ("if size == 4: return 'a'\n    return 'b'", "kind == 'a'", False),
        ("if rank == 0: return 'a'\n    return 'a'", "kind == 'a'", False),
        ("if rank == 0: print('b')\n    return 'a'", "kind == 'a'", False),
    ],
)
def test_values_that_a_function_returns_below_a_rank_test(
    tmp_path: Path, body: str, test: str, parts: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FUNCTION.format(body=f"    {body}", test=test))
    codes = {hit.code for hit in check_file(script, Config())}
    assert ("XLA314" in codes) is parts


SETUP = """
import os

import torch.distributed as dist


def kind_of(rank, size):
    if rank * 4 < size:
        return "a"
    return "b"


def setup(args):
    dist.init_process_group("nccl")
    args.rank = int(os.environ["RANK"])
    if args.rank == 0:
        args.kind = "a"
    else:
        args.kind = "b"
    args.name = "a"
"""
STARTED = HEAD + "from setup import kind_of, setup\n\n\ndef main(args, loader):\n    setup(args)\n"


@pytest.mark.parametrize(
    ("test", "parts"),
    [
        ("args.kind == 'a'", True),
        ("kind_of(args.rank, args.size) == 'a'", True),
        ("args.name == 'a'", False),
    ],
)
def test_values_that_another_file_sets_apart(tmp_path: Path, test: str, parts: bool) -> None:
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "train.py").write_text(STARTED + TRAINING.format(test=test))
    codes = {hit.code for hit in check_paths([tmp_path], Config()).findings}
    assert ("XLA314" in codes) is parts
