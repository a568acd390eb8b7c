"""XLA208: functions that read values of the device, called at every step of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.syntax.source import parse

METRIC = """\
import torch


def errors(pred, target):
    return {"mean": (pred - target).abs().mean().item()}


def tensors(pred, target):
    return {"mean": (pred - target).abs().mean()}
"""
SCRIPT = """\
import torch

from metric import errors, tensors


def main(loader, frames):
    model = torch.nn.Linear(4, 4).cuda()
    model.eval()
    history = []
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        with torch.no_grad():
            pred = model(x)
        {line}
    {after}
    return history


if __name__ == "__main__":
    main([], [])
"""


@pytest.mark.parametrize(
    ("line", "after", "reported"),
    [
        ("history.append(errors(pred, y))", "", True),
        ("history.append(tensors(pred, y))", "", False),
        ("history.append(pred)", "print(errors(pred, y))", False),
        ("history.append(errors(1.0, 2.0))", "", False),
    ],
)
def test_a_function_of_another_file(tmp_path: Path, line: str, after: str, reported: bool) -> None:
    (tmp_path / "metric.py").write_text(METRIC)
    (tmp_path / "train.py").write_text(SCRIPT.format(line=line, after=after))
    found = check_paths([tmp_path], Config()).findings
    assert bool([f for f in found if f.code == "XLA208" and f.path.name == "train.py"]) is reported


def test_a_loop_over_batches_that_moves_them_does_not_sample() -> None:
    text = """
import torch


@torch.no_grad()
def evaluate(model, loader):
    model.cuda()
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        print(model(x).sum().item())


@torch.no_grad()
def sample(model, z, scales):
    model.cuda()
    scales = scales.cuda()
    for turn in range(50):
        z = model(z) * scales[turn].item()
    return z
"""
    found = check_source(parse(text.encode(), Path("train.py")), Config(select=("XLA201",)))
    assert [text.splitlines()[f.line - 1].strip() for f in found] == [
        "z = model(z) * scales[turn].item()"
    ]
