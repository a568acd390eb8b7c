"""Reads in functions that the step runs by another name: a partial, a parameter, an entry of a dictionary."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """\
import functools
from functools import partial

import torch


def weigh(scale, losses):
    return losses["loss"].mean().item() * scale  # read


def run_with(function, losses):
    return function(losses=losses)


class Trainer:
    def __init__(self, model, optimizer, given):
        self.model = model.cuda()
        self.optimizer = optimizer
        self.kept = functools.partial(weigh, 1)
        self.given = given

    def run(self, loader):
        for x in loader:
            losses = {{"loss": self.model(x.cuda())}}
            weight = {call}
            loss = losses["loss"].mean() * weight
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def main(model, optimizer, loader):
    Trainer(model, optimizer, partial(weigh, 3)).run(loader)
    print(weigh(1, {{"loss": torch.ones(3)}}))
"""


def found(call: str) -> list[int]:
    """Return the lines in which a read inside of the step is reported."""
    source = parse(SCRIPT.format(call=call).encode(), Path("script.py"))
    return [one.line for one in check_source(source, Config(select=("XLA201",)))]


@pytest.mark.parametrize(
    "call",
    [
        "weigh(1, losses)",
        "partial(weigh, 1)(losses)",
        "partial(weigh, scale=1)(losses=losses)",
        "self.kept(losses)",
        "self.given(losses)",
        'dict(a=partial(weigh, 1))["a"](losses)',
        "run_with(partial(weigh, 1), losses)",
    ],
)
def test_a_read_by_another_name(call: str) -> None:
    assert found(call) == [8]


@pytest.mark.parametrize("call", ["1.0", "len(losses)", "partial(len, losses)()"])
def test_no_read_in_the_step(call: str) -> None:
    assert found(call) == []
