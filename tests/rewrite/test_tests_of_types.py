"""Tests of the type of a wrapped model stay; a variable that one branch sets may be missing."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse


def notes(script: str, style: Style) -> list[tuple[str, int]]:
    source = parse(textwrap.dedent(script).lstrip().encode(), Path("train.py"))
    done = rewrite_source(source, options=RewriteOptions(style=style))
    return [(note.rule, note.line) for note in done.findings]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "test",
    [
        "type(model) in (nn.DataParallel, nn.parallel.DistributedDataParallel)",
        "type(model) is nn.parallel.DistributedDataParallel",
        "model.__class__ == nn.DataParallel",
        "nn.DataParallel is type(model)",
        "issubclass(type(model), (nn.DataParallel, nn.parallel.DistributedDataParallel))",
    ],
)
def test_a_test_of_a_type_is_left_alone(test: str, style: Style) -> None:
    script = f"from torch import nn\n\n\ndef plain(model):\n    return model.module if {test} else model\n"
    assert notes(script, style) == []


def test_a_class_that_is_used_is_reported() -> None:
    script = "from torch import nn\n\nWRAPPERS = (nn.DataParallel, list)\n"
    assert notes(script, "native") == [("unhandled", 3)]


SETUP = """
import os
import sys

import torch.distributed as dist


def setup(args):
    if {test}:
        rank = int(os.environ["RANK"])
    else:
        rank = 0
        {other}
    print(rank, os.environ["MASTER_ADDR"])
    dist.init_process_group("nccl", rank=rank)
"""
SETS = 'os.environ["MASTER_ADDR"] = "localhost"'


@pytest.mark.parametrize(
    ("test", "other", "missing"),
    [
        ('"RANK" in os.environ', SETS, True),
        ("args.distributed", SETS, True),
        ('os.environ.get("MASTER_ADDR")', SETS, False),
        ('"MASTER_ADDR" in os.environ', SETS, False),
        ('"RANK" in os.environ', f"{SETS}\n    {SETS}", False),
    ],
)
def test_a_variable_that_one_branch_sets(test: str, other: str, missing: bool) -> None:
    script = SETUP.format(test=test, other=other)
    line = next(n for n, text in enumerate(script.lstrip().splitlines(), 1) if "print(" in text)
    assert (("rendezvous-address", line) in notes(script, "native")) is missing
