"""XLA103: an assignment at a mask of values at the same mask is one finding, with its replacement."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
import torch


class Loss(torch.nn.Module):
    def forward(self, a, b, target, batch):
        mask = target != -100
        {line}
        return a.sum()
"""
WHERE = "a.copy_(torch.where(mask, b, a))"


def messages(line: str) -> list[str]:
    source = parse(SCRIPT.format(line=line).encode(), Path("script.py"))
    return [finding.message for finding in check_source(source, Config(select=("XLA103",)))]


@pytest.mark.parametrize(
    "line",
    [
        "a[mask] = b[mask]",
        "a[~mask] = b[~mask] * 2",
        "a[target > 3] += b[target > 3]",
        "a[:, mask] = -b[:, mask].detach()",
        "a[mask] = (b + 1)[mask].to(a.dtype)",
        'a[batch["mask"]] = b[batch["mask"]]',
    ],
)
def test_one_finding_says_how(line: str) -> None:
    (message,) = messages(line)
    assert WHERE in message


@pytest.mark.parametrize(
    "line",
    [
        "a[mask] = b[~mask]",
        "a[mask] = b[mask].mean()",
        "a[mask] = b[mask].flip(0)",
        "c = a[mask] = torch.sort(b[mask])[0]",
    ],
)
def test_other_values_are_findings_of_their_own(line: str) -> None:
    assert len(messages(line)) == 2
    assert not any(WHERE in message for message in messages(line))


def test_a_mask_in_an_update_is_a_target() -> None:
    (message,) = messages("a[mask] *= 2")
    assert message.endswith("; masked_fill or torch.where")


def test_the_replacement_is_the_same() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 3, requires_grad=True).unbind()
    mask = torch.tensor([True, False, True, False])
    left, right = a.clone(), a.clone()
    left[mask] = b[mask]
    rows = mask[:, None]
    right.copy_(torch.where(rows, b, right))
    assert torch.equal(left, right)
    for of in (a, b):
        one, other = (
            torch.autograd.grad(x.square().sum(), of, retain_graph=True) for x in (left, right)
        )
        assert torch.equal(*one, *other)
