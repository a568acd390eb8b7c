"""XLA208: calls of objects whose class is chosen by name, at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import check_and_mend

METERS = """\
CLASSES = {}


def register(cls):
    CLASSES[cls.__name__] = cls
    return cls


def build_from_cfg(cfg):
    return CLASSES[cfg.pop("type")](**cfg)


@register
class LossMeter:
    def __init__(self):
        self.total = 0.0

    def update(self, loss):
        self.total += READ
"""
TRAINING = """\
import meters
import torch


def main(cfg, loader):
    model = torch.nn.Linear(2, 2).cuda()
    criterion = meters.CLASSES[cfg.loss]()
    meter = MADE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss)
"""


def reported(folder: Path, made: str, read: str) -> list[str]:
    (folder / "meters.py").write_text(METERS.replace("READ", read))
    (folder / "train.py").write_text(TRAINING.replace("MADE", made))
    findings = check_and_mend([folder], Config(select=("XLA208",))).findings
    return [f"{finding.path.name}:{finding.line}" for finding in findings]


@pytest.mark.parametrize(
    "made",
    [
        "meters.CLASSES[cfg.meter]()",
        "meters.build_from_cfg(cfg.meter)",
        "getattr(meters, cfg.meter)()",
        "meters.LossMeter()",
    ],
)
def test_a_read_at_every_step_is_reported(made: str, tmp_path: Path) -> None:
    assert reported(tmp_path, made, "loss.item()") == ["train.py:16"]


def test_a_class_that_reads_nothing_is_not(tmp_path: Path) -> None:
    assert reported(tmp_path, "getattr(meters, cfg.meter)()", "loss.detach()") == []
