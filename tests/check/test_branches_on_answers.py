"""XLA110 in a forward: tests of tensors that two places bind, and flags of Python."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

NET = """
    import torch


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(4, 4)

        def forward(self, x, targets=None, augment=None, **options):
            if "labels" in options:
                targets = options["labels"]
            x = self.head(x)
            if {test}:
                x = x * 2
            return x


    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x, augment, start):
            x = self.net(x, augment=augment)
            if {flag}:
                x = x + 1
            return x
"""


def reported(test: str = "x is None", flag: str = "x is None") -> list[str]:
    text = textwrap.dedent(NET).format(test=test, flag=flag)
    found = check_source(parse(text.encode(), Path("net.py")), Config(select=("XLA110",)))
    return [text.splitlines()[f.line - 1].strip(" :").removeprefix("if ") for f in found]


@pytest.mark.parametrize(
    "test",
    [
        "torch.any(targets == -100)",
        "(targets == -100).any()",
        "not torch.all(targets)",
        "targets is not None and targets.isnan().any()",
        "torch.isnan(x).any()",
    ],
)
def test_a_test_of_a_value_that_two_places_bind(test: str) -> None:
    """The value came from a parameter or from keywords; its test had no finding."""
    assert reported(test=test)


@pytest.mark.parametrize(
    "flag", ["augment == True", "augment != False", "start == True and x.dim() > 2"]
)
def test_a_comparison_with_true_asks_a_flag(flag: str) -> None:
    """The parameter of a forward without a default counted as a tensor."""
    assert reported(flag=flag) == []


@pytest.mark.parametrize("flag", ["x.sum() == True", "start[0] == True", "start > 1"])
def test_other_comparisons_ask_tensors(flag: str) -> None:
    assert reported(flag=flag) == [flag]
