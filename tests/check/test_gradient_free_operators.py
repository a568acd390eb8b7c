"""Operators whose gradient alone runs on the CPU, with and without gradients (XLA111)."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
    import torch


    class Loss(torch.nn.Module):
        DECORATOR
        def pairs(self, x):
            return torch.cdist(x, x)

        def forward(self, x):
            return (self.pairs(x) + x).mean()


    def train(model, loss, loader, optimizer):
        model.cuda()
        for x in loader:
            value = loss(model(x.cuda()))
            value.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("decorator", "lines"),
    [("# with gradients", [7]), ("@torch.no_grad()", []), ("@torch.inference_mode()", [])],
)
def test_the_gradient_of_cdist(decorator: str, lines: list[int]) -> None:
    text = dedent(SCRIPT).lstrip().replace("DECORATOR", decorator)
    found = check_source(parse(text.encode(), Path("loss.py")), Config(select=("XLA111",)))
    assert [finding.line for finding in found] == lines
