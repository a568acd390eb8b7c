"""What has a shape that depends on values, in an evaluation: it compiles there as in training."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.syntax.source import parse

EVALUATION = """
import torch


def run(model, x):
    return model(x)


{free}
def evaluate(model, loader):
    model.cuda()
    errors = []
    for x, y, weights in loader:
        x, y = x.cuda(), y.cuda()
        {body}
    return errors
"""
OUT = "out = run(model, x)"
VARYING = [
    ("XLA103", f"{OUT}\n        errors.append((out - y)[y > 0].mean().item())"),
    ("XLA103", f"{OUT}\n        valid = y >= 0.5\n        errors.append(out[valid].mean().item())"),
    (
        "XLA103",
        f"{OUT}\n        valid = y >= 0.5\n        for i in range(len(x)):\n"
        "            errors.append(out[i][valid[i]].mean().item())",
    ),
    (
        "XLA103",
        f"{OUT}\n        valid = (y >= 0.5) & (y < 2)\n"
        "        errors.append(out.view(-1)[valid.view(-1)].mean().item())",
    ),
    ("XLA103", f"x = x[y > 0]\n        {OUT}\n        errors.append(out.mean().item())"),
    ("XLA103", "out = model(x)\n        errors.append(out[out > 0].cpu())"),
    ("XLA101", f"{OUT}\n        errors.append(torch.nonzero(out).cpu())"),
    ("XLA102", f"{OUT}\n        errors.append(torch.where(out > 0)[0].cpu())"),
    ("XLA104", f"{OUT}\n        errors.append(out.masked_select(y > 0).mean().item())"),
    ("XLA105", f"{OUT}\n        errors.append(torch.unique(out).cpu())"),
]
ON_HOST = [
    f"{OUT}.cpu()\n        y = y.cpu()\n        errors.append(out[y > 0].mean().item())",
    f"{OUT}.cpu().numpy()\n        valid = y.cpu().numpy() > 0\n        errors.append(out[valid].mean())",
    f"{OUT}\n        errors.append(weights[weights > 0].mean().item())",
    f"{OUT}\n        order = out.argmax(1)\n        errors.append(out[0][order].mean().item())",
    f"{OUT}\n        valid = y > 0\n        mean = torch.where(valid, out, 0).sum() / valid.sum()\n"
    "        errors.append(mean.item())",
    f"{OUT}\n        errors.append(out[(y > 0).long()].mean().item())",
]


def warnings(body: str, free: str = "@torch.no_grad()", device: str = ".cuda()") -> list[str]:
    text = EVALUATION.format(body=body, free=free).replace(".cuda()", device)
    found = check_source(parse(text.encode(), Path("evaluate.py")), Config())
    shapes = [f for f in found if f.code.startswith("XLA10") and f.severity is Severity.WARNING]
    return [finding.code for finding in shapes]


@pytest.mark.parametrize(("code", "body"), VARYING)
def test_shape_of_values_in_an_evaluation(code: str, body: str) -> None:
    assert warnings(body) == [code]


@pytest.mark.parametrize(("code", "body"), VARYING)
def test_shape_of_values_in_an_evaluation_on_the_host(code: str, body: str) -> None:
    assert code not in warnings(body, device=".cpu()")


@pytest.mark.parametrize("body", ON_HOST)
def test_values_of_the_host_and_fixed_shapes(body: str) -> None:
    assert warnings(body) == []


def test_shape_of_values_outside_of_the_loop() -> None:
    text = EVALUATION.format(body=OUT, free="@torch.no_grad()").replace(
        "errors = []", "first = torch.ones(3).cuda()\n    errors = [first[first > 0].sum()]"
    )
    found = check_source(parse(text.encode(), Path("evaluate.py")), Config())
    assert [f.severity for f in found if f.code == "XLA103"] in ([], [Severity.INFO])


@pytest.mark.parametrize(
    ("use", "advice"),
    [
        ("x[x > 0].mean()", "the mean is torch.where(mask, x, 0).sum() / mask.sum()"),
        ("torch.mean(x[x > 0])", "the mean is torch.where(mask, x, 0).sum() / mask.sum()"),
        ("torch.log(x[x > 0])", "torch.where(mask, x, 1), since the logarithm of 0 is -inf"),
        ("x[x > 0].log2()", "torch.where(mask, x, 1), since the logarithm of 0 is -inf"),
        (
            "self.loss(x[x > 0])",
            "a mean is its sum / mask.sum(), and below a logarithm fill with 1",
        ),
        ("x[x > 0].sum()", "a mean is its sum / mask.sum(), and below a logarithm fill with 1"),
    ],
)
def test_the_advice_fits_what_is_done_with_the_values(use: str, advice: str) -> None:
    script = (
        "import torch\n\n\nclass Loss(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {use}\n"
    )
    found = check_source(parse(script.encode(), Path("loss.py")), Config())
    (message,) = (one.message for one in found if one.code == "XLA103")
    assert message.endswith(advice)
