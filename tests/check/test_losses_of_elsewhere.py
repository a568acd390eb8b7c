"""XLA201: a loss of which only its backward pass says that it is a tensor of the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder

DIFFUSION = """
class Diffusion:
    def training_losses(self, model, x, **options):
        terms = {}
        terms["loss"] = model(x, **options)
        return terms


def create(**options):
    return Diffusion(**options)
"""
TRAIN = """
import math

import torch
from diffusion import create


def main(model, loader, optimizer, scaler, engine, args):
    model = model.to("cuda")
    diffusion = create(steps=10)
    running = 0
    for x, y in loader:
        x = x.to("cuda")
        losses = diffusion.training_losses(model, x, y=y)
        loss = losses["loss"].mean()
        ABOVE
        optimizer.zero_grad()
        BACKWARD
        optimizer.step()
        BELOW
"""


def script(above: str = "pass", backward: str = "loss.backward()", below: str = "pass") -> str:
    return TRAIN.replace("ABOVE", above).replace("BACKWARD", backward).replace("BELOW", below)


def severities(folder: Path, text: str) -> list[Severity]:
    (folder / "diffusion.py").write_text(DIFFUSION)
    (folder / "train.py").write_text(text)
    return [one.severity for one in check_paths([folder], Config(select=("XLA201",))).findings]


@pytest.mark.parametrize(
    "backward",
    [
        "loss.backward()",
        "scaler.scale(loss).backward()",
        "(loss / 4).backward()",
        "engine.backward(loss)",
    ],
)
@pytest.mark.parametrize("read", ["loss.item()", "loss.detach().item()"])
def test_a_loss_that_is_read_at_every_step(tmp_path: Path, backward: str, read: str) -> None:
    below = script(backward=backward, below=f"running += {read}")
    assert severities(tmp_path, below) == [Severity.INFO]
    above = script(above=f"value = {read}", backward=backward)
    assert severities(tmp_path, above) == [Severity.WARNING]


@pytest.mark.parametrize(
    "below",
    [
        "running += y['weight'].item()",
        "running += losses.item()",
        "if running % 100 == 0: print(loss.item())",
    ],
)
def test_what_is_not_known_to_be_of_the_device_or_read_now_and_then(
    tmp_path: Path, below: str
) -> None:
    assert severities(tmp_path, script(below=below)) == []


def test_a_loss_of_the_cpu(tmp_path: Path) -> None:
    text = script(below="running += loss.item()").replace('.to("cuda")', "")
    assert severities(tmp_path, text) == []


def test_the_rewrite_reports_a_read_between_two_steps(tmp_path: Path) -> None:
    (tmp_path / "diffusion.py").write_text(DIFFUSION)
    above = "value = loss.item()\n        if not math.isfinite(value):\n            continue"
    (tmp_path / "train.py").write_text(script(above=above))
    done = rewrite_folder(tmp_path, processes=1)
    assert "XLA201" in {note.rule for _, note in done.left_to_do}
