"""A transform that an import and an annotation name in two ways is named the same in each run (XLA113)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = """\
from timm.data import Mixup


def train(model, loader, optimizer, mix: Mixup):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        x, y = mix(x, y)
        loss = model(x, y)
        loss.backward()
        optimizer.step()
"""
MAIN = """\
from timm.data.mixup import Mixup

from engine import train


def main(model, loader, optimizer):
    train(model.cuda(), loader, optimizer, Mixup(mixup_alpha=0.8, cutmix_alpha=1.0))
"""


@pytest.mark.long
def test_the_same_name_whatever_the_order_of_sets(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "main.py").write_text(MAIN)
    reports = set()
    for seed in ("1", "2", "3", "4"):
        done = subprocess.run(
            [sys.executable, "-m", "migrate", "check", "--select", "XLA113", "."],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        reports.add(done.stdout)
    assert len(reports) == 1
    assert "timm.data.Mixup draws on the host" in reports.pop()
