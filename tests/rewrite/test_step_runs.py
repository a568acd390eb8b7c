"""Rewritten steps on torch_xla: the same numbers at the same steps, and graphs that are compiled once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse
from tests.waiting import LIMIT

# Whole numbers and quarters only: every sum is exact, so that both sides have the same bits.
DATA = """
import math
import sys

import torch


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n


def batches(number):
    generator = torch.Generator().manual_seed(0)
    for _ in range(number):
        x = torch.randint(-2, 3, (4, 3), generator=generator).float()
        yield x, x.sum(1, keepdim=True) * 3


def make():
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model = model.to("cuda")
    return model, torch.optim.SGD(model.parameters(), lr=0.25)
"""

METERS = (
    DATA
    + """

def train(accum_iter):
    model, optimizer = make()
    losses, running, updates = Meter(), 0.0, 0
    for step, (x, y) in enumerate(batches(8)):
        x, y = x.to("cuda"), y.to("cuda")
        output = model(x)
        loss = (output - y).abs().sum()
        running += loss.item()
        loss_value = loss.item()
        correct = (output.sign() == y.sign()).sum().item()
        if not math.isfinite(loss_value):
            sys.exit(1)
        losses.update(loss.item(), x.size(0))
        loss /= accum_iter
        loss.backward()
        if (step + 1) % accum_iter == 0:
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            print("update", updates, loss.item())
        print(step, repr(running), repr(loss_value), correct, repr(losses.sum / losses.count))
        print(f"{loss:.3f}", float(loss), model.weight.tolist())


train(2)
"""
)

MICRO = (
    DATA
    + """

def train():
    model, optimizer = make()
    data = batches(100)
    for number in (2, 3, 4, 5, 6, 2, 3, 4, 5, 6):
        for micro_step in range(number):
            x, y = next(data)
            x, y = x.to("cuda"), y.to("cuda")
            loss = (model(x) - y).abs().sum()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


train()
"""
)
COMPILES = """
import torch_xla.debug.metrics

print("compiles", torch_xla.debug.metrics.metric_data("CompileTime")[0])
"""


def rewritten(script: str) -> str:
    return rewrite_source(parse(script.encode(), Path("script.py"))).data.decode()


def lines(script: str, folder: Path) -> list[str]:
    path = folder / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.long
@pytest.mark.xla
def test_meters_show_the_same_numbers_at_the_same_steps(tmp_path: Path) -> None:
    original = lines(METERS.replace('"cuda"', '"cpu"'), tmp_path)
    after = rewritten(METERS)
    assert after.count("with torch_xla.step():") == 2
    assert len(original) == 20
    assert lines(after, tmp_path) == original


@pytest.mark.xla
@pytest.mark.long
def test_micro_batches_are_compiled_once_whatever_their_number(tmp_path: Path) -> None:
    original = lines(MICRO.replace('"cuda"', '"cpu"'), tmp_path)
    after = rewritten(MICRO)
    assert after.count("with torch_xla.step():") == 2
    *losses, compiles = lines(after + COMPILES, tmp_path)
    assert losses == original
    # The first micro-batch, those that add to gradients, the update with its reset; not one for each
    # of the five numbers of micro-batches.
    assert int(compiles.split()[1]) <= 4
