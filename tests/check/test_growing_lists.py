"""Lists that get one tensor more in each turn, and become one tensor there (XLA112)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.syntax.source import parse

SCRIPT = """\
import torch


def train(model, loader, optimizer):
    model.cuda()
    losses = []
    numbers = []
    total = torch.zeros((), device="cuda")
    for step, (x, y) in enumerate(loader):
        loss = model(x.cuda(), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
{body}
    print(torch.stack(losses).mean())
"""


def found(body: str) -> list[Severity]:
    """Return how bad the findings in the turn of a training loop are."""
    text = SCRIPT.format(body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8))
    reported = check_source(parse(text.encode(), Path("script.py")), Config(select=("XLA112",)))
    return [one.severity for one in reported]


@pytest.mark.parametrize(
    ("body", "severity"),
    [
        ("losses.append(loss.detach())\nprint(sum(losses) / len(losses))", Severity.WARNING),
        ("losses.append(loss.detach())\nmean = torch.stack(losses).mean()", Severity.WARNING),
        (
            "losses.append(loss.detach())\nif step % 10 == 0:\n    print(torch.cat(losses))",
            Severity.INFO,
        ),
        (
            "losses.append(loss.detach())\nprint(sum(losses))\nif step % 9 == 0:\n    losses = []",
            Severity.WARNING,
        ),
    ],
)
def test_a_list_that_grows(body: str, severity: Severity) -> None:
    assert found(body) == [severity]


@pytest.mark.parametrize(
    "body",
    [
        "total += loss.detach()\nprint(total.item() / (step + 1))",
        "total += loss.detach()\nif step % 10 == 0:\n    print(total.item())",
        "numbers.append(loss.item())\nprint(sum(numbers) / len(numbers))",
        "losses = []\nlosses.append(loss.detach())\nprint(sum(losses))",
        "losses.append(loss.detach())\nif step % 9 == 0:\n    print(sum(losses))\n    losses = []",
        "losses.append(loss.detach())\nif step % 9 == 0:\n    print(sum(losses))\n    losses.clear()",
        "losses.append(loss.detach())",
    ],
)
def test_as_long_in_each_turn(body: str) -> None:
    assert found(body) == []


def test_an_evaluation() -> None:
    text = """\
import torch


@torch.no_grad()
def evaluate(model, loader):
    model.cuda()
    losses = []
    for x in loader:
        losses.append(model(x.cuda()).sum())
        print((sum(losses) / len(losses)).item())
    return sum(losses)
"""
    reported = check_source(parse(text.encode(), Path("a.py")), Config(select=("XLA112",)))
    assert [one.line for one in reported] == [10]
