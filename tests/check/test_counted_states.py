"""Counters in the state of an optimizer of the script's own, read where the state is handed on."""

from __future__ import annotations

from pathlib import Path

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
from contextlib import contextmanager

import torch


def scaled(group, p, state, grad):
    if state["step"] % 4 == 3:
        return grad * 2
    return grad


class Scaled(torch.optim.Optimizer):
    @contextmanager
    def batched(self, group):
        tuples = []
        for p in group["params"]:
            stacked = torch.stack([p])
            stacked.grad = torch.stack([p.grad])
            tuples.append((stacked, self.state[p], "name"))
        yield tuples

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            with self.batched(group) as batches:
                self.clip(group, batches)
                for p, state, _ in batches:
                    if len(state) == 0:
                        state["step"] = START
                    p += scaled(group, p.detach(), state, p.grad)
                    state["step"] = state["step"] + 1

    def clip(self, group, tuples: list[tuple[torch.Tensor, dict, str]]):
        first, first_state, _ = tuples[0]
        step = first_state["step"]
        if step == 0:
            return
        first.mul_(0.5)


def train(model, loader):
    model.cuda()
    optimizer = Scaled(model.parameters())
    for x in loader:
        loss = model(x.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def lines(start: str) -> list[int]:
    """Return the lines of XLA110 where the count begins at `start`."""
    source = parse(SCRIPT.replace("START", start).encode(), Path("train.py"))
    return [found.line for found in check_source(source, Config()) if found.code == "XLA110"]


def test_a_count_is_a_number_of_python() -> None:
    """No value of a tensor is asked for."""
    assert lines("0") == []


def test_a_count_on_the_device_is_read() -> None:
    """What made the value decides, not the name of the entry."""
    assert lines('torch.zeros((), device="cuda")') != []
