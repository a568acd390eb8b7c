"""Where the replica's index is followed, and where it is not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

{definitions}


def worker(rank, x):
    {body}


if __name__ == "__main__":
    mp.spawn(worker, args=(None,), nprocs=2)
"""


def rewritten(body: str, definitions: str = "") -> str:
    filled = SCRIPT.format(
        body=textwrap.indent(textwrap.dedent(body).strip(), "    ").strip(),
        definitions=textwrap.dedent(definitions).strip(),
    )
    return rewrite_source(parse(filled.encode(), Path("script.py"))).data.decode()


@pytest.mark.parametrize(
    "body",
    [
        "x.to(rank)",
        "x.to(device=rank)",
        "gpu = rank\nx.to(gpu)",
        "x.to(dist.get_rank())",
        "local = dist.get_rank() % torch.cuda.device_count()\nx.to(local)",
        "def inner():\n    x.to(rank)",
        "x.to(torch.device(f'cuda:{rank}'))",
    ],
)
def test_followed(body: str) -> None:
    after = rewritten(body)
    assert "xla" in after.split("def worker")[1].split("if __name__")[0]
    assert "cuda:" not in after


@pytest.mark.parametrize(
    "body",
    [
        "x.to(torch.float16)",
        "rank = torch.bfloat16\nx.to(rank)",  # assigned: no longer the index
        "dtype = rank if x else torch.half\nx.to(dtype)",
        "for rank in (torch.half, torch.float):\n    x.to(rank)",
    ],
)
def test_not_followed(body: str) -> None:
    assert "'xla'" not in rewritten(body)
    assert '.to("xla")' not in rewritten(body)


def test_through_calls_only_where_every_call_passes_the_index() -> None:
    definitions = """
        def move(x, where):
            return x.to(where)
    """
    assert '.to("xla")' in rewritten("move(x, rank)", definitions)
    assert '.to("xla")' not in rewritten("move(x, rank)\nmove(x, torch.half)", definitions)


def test_through_attributes_only_where_they_are_assigned_once() -> None:
    once = """
        class Trainer:
            def __init__(self, gpu):
                self.gpu = gpu

            def move(self, x):
                return x.to(self.gpu)
    """
    twice = once + "\n    def reset(self):\n        self.gpu = torch.half\n".replace(
        "\n", "\n        "
    )
    assert '.to("xla")' in rewritten("Trainer(rank).move(x)", once)
    assert '.to("xla")' not in rewritten("Trainer(rank).move(x)", twice)
