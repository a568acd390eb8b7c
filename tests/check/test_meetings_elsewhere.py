"""A function of another file in which all replicas meet, called by some of them only."""

from __future__ import annotations

from pathlib import Path

from migrate.check.config import Config
from migrate.check.file import check_file

UTIL = """
import torch
import torch.distributed as dist


def shared(path):
    data = [torch.load(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(data)
    return data[0]


def plain(path):
    return torch.load(path)
"""
TRAIN = """
import torch.distributed as dist

from util import plain, shared


def resume(model, path, rank):
    if rank == 0:
        model.load_state_dict(shared(path))
    state = shared(path)
    if rank == 0:
        model.load_state_dict(plain(path))
    else:
        state = None
    return state
"""


def test_a_collective_in_another_file_is_reported_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "util.py").write_text(UTIL)
    train = tmp_path / "train.py"
    train.write_text(TRAIN)
    found = [one for one in check_file(train, Config()) if one.code == "XLA302"]
    assert [one.line for one in found] == [9]
    assert "shared (util.py:6) makes a collective" in found[0].message
