"""A loss that calls collectives is recorded on one rank: a note says so."""

from __future__ import annotations

from textwrap import dedent

import pytest

from migrate.train.slice.text import ScriptText
from migrate.train.write.collectives import collective_notes

SCRIPT = """
    IMPORT
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            CALL
            return x

    def gather(x):
        return Own.apply(x)

    def contrastive(a):
        return gather(a).sum()

    def train(model, batch):
        loss = contrastive(model(batch))
        dist.all_reduce(loss)
"""


@pytest.mark.parametrize(
    ("line", "call", "noted"),
    [
        ("import torch.distributed as dist", "dist.all_gather([x], x)", True),
        ("import torch, torch.distributed", "torch.distributed.broadcast(x, 0)", True),
        ("from torch.distributed import all_gather", "all_gather([x], x)", True),
        ("import torch.distributed.nn as dnn", "dnn.functional.all_gather(x)", True),
        ("import torch.distributed as dist", "dist.get_rank()", False),
        ("import torch.distributed as dist", "x.gather(0, x)", False),
        ("from cluster import all_gather", "all_gather([x], x)", False),
    ],
)
def test_a_collective_below_the_loss_is_noted(line: str, call: str, noted: bool) -> None:
    text = dedent(SCRIPT).replace("IMPORT", line).replace("CALL", call)
    script = ScriptText("clip.py", text)
    at = text.splitlines().index("    loss = contrastive(model(batch))") + 1
    notes = collective_notes(script, [(at, at)])
    assert len(notes) == noted
    if noted:
        where = text.splitlines().index(f"        {call}") + 1
        assert f"clip.py:{where}" in notes[0]
