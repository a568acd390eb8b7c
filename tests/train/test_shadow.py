"""Modules of the script that the program's files would hide."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.train.write.shadow import hidden_module


@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        ("import torch, loss", ""),
        ("from model import Net", "model"),
        ("def batches():\n    from data.sets import Words", "data"),
        ("from helper import words", "config"),
        ("import fine.inner", ""),
        ("import optimizer.lr", ""),
    ],
)
def test_a_module_that_the_program_hides_is_named(tmp_path: Path, source: str, hidden: str) -> None:
    (tmp_path / "model.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sets.py").write_text("")
    (tmp_path / "helper.py").write_text("import config\n")
    (tmp_path / "config.py").write_text("import helper\n")
    (tmp_path / "fine").mkdir()
    (tmp_path / "fine" / "inner.py").write_text("from . import model\n")
    files = ("config", "data", "loss", "model", "optimizer", "train")
    assert hidden_module(source, tmp_path, files) == hidden
