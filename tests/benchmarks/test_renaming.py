"""A rewrite rests on what makes a value, not on what the script calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.renaming import Compared, Verdict, compare, own_names

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*/before.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[path.parent.name for path in SCRIPTS])
def test_other_names_are_rewritten_alike(script: Path) -> None:
    assert compare(script.read_text()) == Compared(Verdict.SAME)


def test_the_names_that_are_replaced() -> None:
    text = """
import torch


class Net(torch.nn.Module):
    width = 3

    def forward(self, x):
        return self.head(x)


def train(net, *, rate):
    for batch in net:
        print(batch.loss)


train(Net(), rate=0.1)
"""
    assert own_names(text) == {"Net", "train", "net", "x", "batch"}


def test_what_rests_on_a_name_is_seen() -> None:
    """A parameter that nothing fills is a rank by its name alone."""
    text = """
import torch.distributed as dist


def log(loss, rank):
    dist.all_reduce(loss)
    if rank == 0:
        print(loss.item())
"""
    found = compare(text)
    assert found is not None
    assert found.verdict is Verdict.SILENT
