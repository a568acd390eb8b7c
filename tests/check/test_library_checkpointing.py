"""XLA808: models of libraries that checkpoint with torch's function, made in other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import check_and_mend

MODELS = """\
import torch
from transformers import AutoModel


class Own(torch.nn.Module):
    def gradient_checkpointing_enable(self):
        self.remat = True


class Encoder(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.trunk = AutoModel.from_pretrained(name)


def trunk(name):
    return AutoModel.from_pretrained(name)
"""
TRAINING = """\
import models
import torch


def main(name):
    model = MADE
    LINE
    return model.cuda()
"""


def reported(folder: Path, made: str, line: str) -> bool:
    (folder / "models.py").write_text(MODELS)
    (folder / "train.py").write_text(TRAINING.replace("MADE", made).replace("LINE", line))
    found = check_and_mend([folder], Config(select=("XLA808",))).findings
    assert {one.path.name for one in found} <= {"train.py"}
    return bool(found)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("models.trunk(name)", "model.gradient_checkpointing_enable()"),
        ("models.Encoder(name)", "model.trunk.gradient_checkpointing_enable()"),
        ("models.Encoder(name)", "model.trunk.activation_checkpointing_enable({})"),
        ("models.trunk(name)", "model.set_grad_checkpointing()"),
    ],
)
def test_a_model_of_a_library_is_reported(tmp_path: Path, made: str, line: str) -> None:
    assert reported(tmp_path, made, line)


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("models.Own()", "model.gradient_checkpointing_enable()"),
        ("models.trunk(name)", "model.set_grad_checkpointing(False)"),
        ("models.trunk(name)", "model.gradient_checkpointing_disable()"),
    ],
)
def test_what_does_not_use_it_is_not(tmp_path: Path, made: str, line: str) -> None:
    assert not reported(tmp_path, made, line)
