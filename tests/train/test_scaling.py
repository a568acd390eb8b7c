"""Calls of a loss scaler belong to the training step: a program has no scaler."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from migrate.train.find import find_training
from migrate.train.options import TrainOptions
from migrate.train.slice.text import ScriptText
from migrate.train.watch import listening

SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for x in torch.ones(4, 3, 2):
    loss = model(x).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.fixture
def restored() -> Iterator[None]:
    cls = torch.amp.GradScaler
    kept = {name: getattr(cls, name) for name in ("unscale_", "update")}
    yield
    for name, method in kept.items():
        setattr(cls, name, method)


@pytest.mark.usefixtures("restored")
def test_calls_of_a_scaler_are_told() -> None:
    told: list[None] = []
    listening.to_scaling(lambda: told.append(None))
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert len(told) == 2


@pytest.mark.long
def test_lines_of_a_scaler_train(tmp_path: Path) -> None:
    script = tmp_path / "script" / "train.py"
    script.parent.mkdir()
    script.write_text(textwrap.dedent(SCRIPT))
    work = tmp_path / "work"
    work.mkdir()
    options = TrainOptions(script, tmp_path / "program")
    text, [(events, _)] = find_training(ScriptText(str(script), script.read_text()), options, work)
    lines = {text.lines[frames[0].line - 1].strip() for frames in events.dropped}
    assert {"scaler.unscale_(optimizer)", "scaler.update()"} <= lines
