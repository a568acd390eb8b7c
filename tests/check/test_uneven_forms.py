"""The forms in which one replica alone computes on the device: what is written for each, or reported."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import functools

import torch
import torch.distributed as dist


def main_only(function):
    @functools.wraps(function)
    def run(*args):
        if dist.get_rank() == 0:
            return function(*args)

    return run


class Seen:
    def __init__(self):
        self.rank = dist.get_rank()
        self.total = torch.zeros(1).cuda()

    @main_only
    def keep(self, x):
        self.total += x

    def leave(self, x):
        if self.rank != 0:
            return
        self.total += x

    def leave_early(self, x):
        if self.rank != 0:
            return None
        print("kept")
        self.total.add_(x)
        return self.total

    def start(self, n):
        if self.rank == 0:
            return torch.randn(n, device="cuda")
        return torch.zeros(n, device="cuda")

    def share(self, x, n, path):
        rank = self.rank
        {body}
        return x
"""
# What is written, line by line.
MENDED = {
    "decorator": (
        "dist.all_reduce(x)\nself.keep(x)",
        "dist.all_reduce(x)\nSYNC\nself.keep(x)",
    ),
    "decorator before": (
        "self.keep(x)\ndist.all_reduce(x)",
        "self.keep(x)\nSYNC\ndist.all_reduce(x)",
    ),
    "elif": (
        "if n is None:\n    print(n)\nelif rank == 0:\n    self.total += x\ndist.all_reduce(x)",
        "elif rank == 0:\n    self.total += x\nSYNC\ndist.all_reduce(x)",
    ),
    "match": (
        "match rank:\n    case 0:\n        self.total += x\ndist.all_reduce(x)",
        "    case 0:\n        self.total += x\nSYNC\ndist.all_reduce(x)",
    ),
    "nested": (
        "if n:\n    with torch.no_grad():\n        if rank == 0 and n > 1:\n            self.total += x\n"
        "dist.all_reduce(x)",
        "            self.total += x\n        SYNC\ndist.all_reduce(x)",
    ),
    "both": (
        "dist.all_reduce(x)\nif rank == 0:\n    self.total += x\ndist.all_reduce(x)",
        "dist.all_reduce(x)\nSYNC\nif rank == 0:\n    self.total += x\nSYNC\ndist.all_reduce(x)",
    ),
    "closure": (
        "def inner():\n    if rank == 0:\n        self.total += x\ninner()\ndist.all_reduce(x)",
        "    if rank == 0:\n        self.total += x\n    SYNC\ninner()",
    ),
    "loop": (
        "for i in range(n):\n    dist.all_reduce(x)\n    if rank == 0:\n        self.total += x",
        "    dist.all_reduce(x)\n    SYNC\n    if rank == 0:\n        self.total += x",
    ),
    "conditional": (
        "x = torch.ones(n, device=x.device) if rank == 0 else torch.zeros(n, device=x.device)\n"
        "dist.broadcast(x, 0)",
        "x.device)\nSYNC\ndist.broadcast(x, 0)",
    ),
    "and": (
        "rank == 0 and self.total.add_(x)\ndist.all_reduce(x)",
        "rank == 0 and self.total.add_(x)\nSYNC\ndist.all_reduce(x)",
    ),
}
REPORTED = {
    "returned": "x = self.start(n)\ndist.broadcast(x, src=0)",
    "left": "self.leave(x)\ndist.all_reduce(x)",
    "left early": "self.leave_early(x)\ndist.all_reduce(x)",
}
RIGHT = {
    "left": "self.leave(x)\ntorch.cuda.synchronize()\ndist.all_reduce(x)",
    "kept": "self.keep(x)",
    "host": "y = torch.zeros(n)\nif rank == 0:\n    y[0] = 3\ny = y.cuda()\ndist.broadcast(y, 0)",
    "logged": "dist.all_reduce(x)\nv = x.item()\nif rank == 0:\n    print(v, x.shape, len(x))",
    "read by all": "dist.all_reduce(x)\nprint(x.item())\nif rank == 0:\n    self.total += x.item()",
    "saved": "if rank == 0:\n    print(path)\ndist.all_reduce(x)",
}


def written(folder: Path, body: str) -> Path:
    path = folder / "seen.py"
    path.write_text(SCRIPT.lstrip().replace("{body}", textwrap.indent(body, " " * 8).lstrip()))
    return path


def codes(path: Path) -> list[str]:
    return [hit.code for hit in check_file(path, Config()) if hit.code == "XLA314"]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(("body", "after"), MENDED.values(), ids=MENDED)
def test_mended(body: str, after: str, style: Style, tmp_path: Path) -> None:
    path = written(tmp_path, body)
    assert codes(path)
    done = rewrite_source(parse(path.read_bytes(), path), options=RewriteOptions(style=style))
    text = textwrap.dedent(done.data.decode().partition("rank = self.rank\n")[2])
    sync = "torch_xla.sync()" if style == "native" else "shims.synchronize()"
    assert after.replace("SYNC", sync) in text
    path.write_bytes(done.data)
    assert codes(path) == []


@pytest.mark.parametrize("body", REPORTED.values(), ids=REPORTED)
def test_reported(body: str, tmp_path: Path) -> None:
    path = written(tmp_path, body)
    assert codes(path)
    done = rewrite_source(parse(path.read_bytes(), path))
    assert [note.rule for note in done.findings if note.rule == "uneven-sync"]


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_not_reported(body: str, tmp_path: Path) -> None:
    path = written(tmp_path, body)
    assert codes(path) == []
    done = rewrite_source(parse(path.read_bytes(), path))
    assert [note for note in (*done.edits, *done.findings) if note.rule == "uneven-sync"] == []
