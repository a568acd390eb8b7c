"""Tests of a training loop that some replicas alone leave."""

from __future__ import annotations

from pathlib import Path

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
import torch
import torch.distributed as dist


def train(model, loader, optimizer, score):
    master = dist.get_rank() == 0
    for epoch in range(9):
        for x in loader:
            loss = model(x.cuda()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if master:
            {body}
        {other}


def main(model, loader, optimizer, score):
    dist.init_process_group("nccl")
    train(model, loader, optimizer, score)
"""


def lines(body: str, other: str = "pass") -> list[int]:
    """Return the lines of XLA879 in the script with `body` below the test of the rank."""
    script = SCRIPT.format(body=body, other=other).encode()
    found = check_source(parse(script, Path("train.py")), Config())
    return [hazard.line for hazard in found if hazard.code == "XLA879"]


def test_leaving_between_epochs_is_reported() -> None:
    """The others begin the next epoch."""
    assert lines("if score(epoch) > 0.9:\n                break") == [16]
    assert lines("return") == [15]


def test_leaving_an_inner_loop_is_not() -> None:
    """A loop of the first replica alone runs no collective."""
    assert lines("for part in score(epoch):\n                break") == []


def test_leaving_on_all_replicas_is_not() -> None:
    """The branch of the other replicas leaves, too."""
    assert lines("break", "else:\n            break") == []
    assert lines("score(epoch)", "if epoch > 3:\n            break") == []
