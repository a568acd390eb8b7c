"""Numbers that a checkpoint holds are no tensors."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
    import torch
    from torch import nn


    class Loss(nn.Module):
        def forward(self, x, step=0):
            return x.mean() if step < 5 else x.square().mean()


    def main(path, lr=0.1):
        model, loss_of = nn.Linear(2, 2).to("xla"), Loss().to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        {start}
        state = torch.load(path, map_location="cpu")
        step = {entry}
        for _ in range(10):
            loss = loss_of(model(torch.randn(2, 2).to("xla")), step={passed})
            loss.backward()
            optimizer.step()
            {count}
        torch.save({saved}, path)
"""


def codes(start: str, entry: str, passed: str, count: str, saved: str) -> list[str]:
    text = textwrap.dedent(SCRIPT).format(
        start=start, entry=entry, passed=passed, count=count, saved=saved
    )
    findings = check_source(parse(text.encode(), Path("s.py")), Config())
    return [finding.code for finding in findings if finding.code == "XLA830"]


NUMBERS = [
    ("step = 0", 'state["step"]', "step", "step += 1", '{"step": step}'),
    ("step = 0", 'state["step"]', "step", "pass", '{"a": step}'),
    ("pass", 'state["step"]', "step", "step += 1", '{"a": 1}'),
    ("pass", 'state["step"]', 'state["step"]', "pass", '{"step": 10}'),
    ("count = 0", 'state["step"]', "step", "count += 1", 'dict(step=count, model="m")'),
    ("pass", 'state.get("step", 0)', "step", "pass", '{"a": 1}'),
    ("pass", 'state.get("best")', "step", "pass", '{"best": float(loss)}'),
]
TENSORS = [
    ("pass", 'state["step"]', "step", "pass", '{"step": loss}'),
    ("total = 0", 'state["mean"]', "step", "total += loss", '{"mean": total}'),
    ("pass", 'state.get("mean")', "step", "pass", '{"a": 1}'),
]


@pytest.mark.parametrize("parts", NUMBERS)
def test_a_number_of_a_checkpoint_is_no_tensor(parts: tuple[str, str, str, str, str]) -> None:
    assert not codes(*parts)


@pytest.mark.parametrize("parts", TENSORS)
def test_a_tensor_of_a_checkpoint_is_reported(parts: tuple[str, str, str, str, str]) -> None:
    assert codes(*parts) == ["XLA830"]
