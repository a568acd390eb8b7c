"""XLA110: `torch.isnan` of what nothing is known of is a tensor, in a step one of the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """\
import torch


def total_of(functions):
    total = 0.0
    for name, function in functions.items():
        loss = function()
        if TEST:
            print(f"{name} is no number")
        total = total + loss
    return total


def train(model, loader, optimizer):
    model.cuda()
    for x in loader:
        out = model(x.cuda())
        loss = total_of({"a": lambda: out.mean(), "b": lambda: out.abs().mean()})
        loss.backward()
        optimizer.step()
"""


def lines(test: str) -> list[int]:
    source = parse(SCRIPT.replace("TEST", test).encode(), Path("train.py"))
    return [found.line for found in check_source(source, Config()) if found.code == "XLA110"]


@pytest.mark.parametrize(
    "test",
    [
        "torch.isnan(loss) or torch.isinf(loss)",
        "torch.isnan(loss).any()",
        "not torch.isfinite(loss)",
        "torch.isnan(loss).sum() > 0",
        "torch.any(torch.isnan(loss))",
        "torch.isfinite(loss).all().item()",
    ],
)
def test_it_is_read(test: str) -> None:
    assert lines(test) == [8]


@pytest.mark.parametrize(
    "test",
    ["torch.is_tensor(loss)", "torch.isnan(torch.tensor([1.0]))", "loss is None", "callable(loss)"],
)
def test_questions_that_read_nothing(test: str) -> None:
    assert lines(test) == []
