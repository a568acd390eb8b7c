"""Branches on the value of a tensor in loops that sample, generate or evaluate (XLA110)."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """\
import torch
import torch.distributed as dist


class Sampler:
    def __init__(self, model):
        self.model = model.cuda()

    {free}
    def sample(self, x, steps, rounds):
        x = x.clone()
        for i in range(steps):
            y = self.model(x)
            jump = torch.rand(size=x.shape, device=x.device) < y
            {body}
            x = y
        return x


def main(model):
    return Sampler(model).sample(torch.zeros(4, device="cuda"), 30, 2)
"""


def found(body: str, free: str = "@torch.no_grad()") -> list[str]:
    """Return the messages about `body`, in the turn of a loop that samples."""
    text = SCRIPT.format(free=free, body=body.replace("\n", "\n            "))
    reported = check_source(parse(text.encode(), Path("script.py")), Config(select=("XLA110",)))
    return [one.message for one in reported]


@pytest.mark.parametrize(
    "body",
    [
        "if jump.sum() > 0:\n    y = y * 2",
        "if jump.any():\n    break",
        "done = jump.all()\nif done:\n    break",
        "y = y if jump.sum() > 0 else x",
        "assert not torch.isnan(y).any()",
        "while y.max() > 3:\n    y = y / 2",
        "if i == steps - 1:\n    y = x\nelif jump.sum() > 0:\n    y = y * 2",
        "if rounds:\n    if jump.any():\n        y = y * 2",
    ],
)
def test_a_branch_in_each_turn(body: str) -> None:
    messages = found(body)
    assert len(messages) == 1
    assert "in each turn of the loop (line 12)" in messages[0]


@pytest.mark.parametrize(
    "body",
    [
        "if i % 10 == 0 and jump.any():\n    break",
        "if i % 10 == 0:\n    if jump.any():\n        break",
        "if i == steps - 1:\n    assert jump.any()",
        "if y.shape[0] > 3:\n    y = y * 2",
        "if jump is not None:\n    y = y * 2",
        "y = torch.where(jump.any(), y, x)",
        "if rounds > 1:\n    y = y * 2",
    ],
)
def test_no_branch_in_each_turn(body: str) -> None:
    assert found(body) == []


def test_a_loop_on_the_host() -> None:
    text = """\
import torch


@torch.no_grad()
def sample(model, x, steps):
    for i in range(steps):
        x = model(x.cpu())
        if x.max() > 3:
            break
    return x


def main():
    return sample(torch.nn.Linear(4, 4), torch.zeros(4, 4), 10)
"""
    assert check_source(parse(text.encode(), Path("a.py")), Config(select=("XLA110",))) == ()
