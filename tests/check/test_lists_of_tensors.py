"""Lists of tensors on the device that become one tensor: each element is read."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

AROUND = """\
import numpy as np
import torch
from torch import tensor

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in [torch.randn(2, 4) for _ in range(3)]:
    loss = model(x.cuda()).sum()
    loss.backward()
{body}
    optimizer.step()
    optimizer.zero_grad()
"""


def hits(body: str) -> list[str]:
    text = AROUND.format(body=textwrap.indent(textwrap.dedent(body).strip(), "    "))
    found = check_source(parse(text.encode(), Path("script.py")), Config())
    return [one.message for one in found if one.code == "XLA202"]


@pytest.mark.parametrize(
    "body",
    [
        "n = torch.tensor([torch.norm(p.grad) for p in model.parameters()])",
        "n = torch.as_tensor([p.grad.norm() for p in model.parameters() if p.grad is not None])",
        "n = tensor([loss, loss * 2])",
        "n = torch.tensor([[loss, loss], [loss, loss]])",
        "parts = [loss, loss + 1]\nn = torch.tensor(parts)",
        "parts = []\nfor p in model.parameters():\n    parts.append(p.grad.norm())\n"
        "n = torch.tensor(parts)",
        "n = torch.FloatTensor([loss.detach(), loss.detach() * 2])",
        "n = np.array([p.grad.norm() for p in model.parameters()])",
    ],
)
def test_a_list_of_tensors_of_the_device_is_read(body: str) -> None:
    assert len(hits(body)) == 1
    assert "torch.stack" in hits(body)[0]


@pytest.mark.parametrize(
    "body",
    [
        "n = torch.stack([torch.norm(p.grad) for p in model.parameters()])",
        "n = torch.tensor([p.numel() for p in model.parameters()])",
        "n = torch.tensor([0.5, 2])",
        "n = torch.as_tensor(loss)",
        "n = torch.tensor([torch.rand(3).sum() for _ in range(2)])",
        "parts = [len(x), 2]\nn = torch.tensor(parts)",
        "n = torch.tensor([x.shape[0], x.size(1)])",
    ],
)
def test_other_lists_are_silent(body: str) -> None:
    assert hits(body) == []
