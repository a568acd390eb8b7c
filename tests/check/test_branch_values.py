"""XLA113: a drawn branch that sets what a later line of the step hands to the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

STEP = """
import random

import torch


def train(model, loader, optimizer, p, log):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        extra, scale, use = {"label": y}, 1.0, False
        if torch.rand(1) < p:
            BRANCH
        LATER
        loss.backward()
        optimizer.step()
"""


def lines(branch: str, later: str) -> list[int]:
    script = STEP.replace("BRANCH", branch).replace("LATER", later)
    found = check_source(parse(script.encode(), Path("train.py")), Config())
    return [finding.line for finding in found if finding.code == "XLA113"]


@pytest.mark.parametrize(
    ("branch", "later"),
    [
        ("y = None", "loss = model(x, y).mean()"),
        ("extra = {}", "loss = model(x, extra=extra).mean()"),
        ("extra = {}", "given = dict(extra); loss = model(x, **given).mean()"),
        ("extra['mask'] = y", "loss = model(x, extra).mean()"),
        ("extra.pop('label')", "loss = model(x, extra).mean()"),
        ("extra.update(mask=y)", "loss = model(x, extra).mean()"),
        ("del extra['label']", "loss = model(x, extra).mean()"),
        ("use = True", "loss = model(x, flip=use).mean()"),
        ("use = True", "loss = (model(x, y) if use else model(x)).mean()"),
    ],
)
def test_what_a_later_line_computes_with(branch: str, later: str) -> None:
    assert lines(branch, later) == [11]


@pytest.mark.parametrize(
    ("branch", "later"),
    [
        ("y = None", "loss = model(x).mean(); print(y)"),
        ("extra = {}", "loss = model(x).mean(); log.info(loss.shape, extra)"),
        ("extra = {}", "extra = {'label': y}\n        loss = model(x, extra).mean()"),
        ("del extra['label']", "extra = {'label': y}\n        loss = model(x, extra).mean()"),
        ("scale = 2.0", "loss = model(x, scale).mean() * scale"),
        ("use = True", "loss = model(x).mean()\n        if use: print('now')"),
    ],
)
def test_a_value_that_nothing_computes_with_is_none(branch: str, later: str) -> None:
    assert lines(branch, later) == []
