"""Loops that sample: reported where all turns become one graph, silent where something ends it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

SAMPLER = """
import numpy as np
import torch


@torch.no_grad()
def draw(velocity, x, steps):
    x = x.cuda()
    dt = 1 / steps
    {loop}
        {turn}
    return x.cpu()
"""
TURNS = {
    "assigned": "x = x + dt * velocity(x, {t})",
    "in place": "x += dt * velocity(x, {t})",
    "by a name": "v = velocity(x, {t}); x = x + v * dt",
    "numbers of the host": "r = np.cos({t}); n = int(9 * r); x = x + n * velocity(x, {t})",
}
LOOPS = {
    "range": ("for i in range(steps):", "i"),
    "progress": ("for i in tqdm(range(steps), leave=False):", "i"),
    "backwards": ("for i in reversed(range(1000)):", "i"),
    "times": ("for i, t in enumerate(torch.linspace(0, 1, steps)):", "t"),
    "while": ("while dt < steps:", "dt"),
}


def reported(folder: Path, **files: str) -> list[tuple[str, int]]:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(inspect.cleandoc(text) + "\n")
    found = check_paths([folder], Config()).findings
    return [(Path(one.path).stem, one.line) for one in found if one.code == "XLA116"]


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("loop", LOOPS)
def test_each_way_to_write_the_loop_is_reported(tmp_path: Path, loop: str, turn: str) -> None:
    head, time = LOOPS[loop]
    script = SAMPLER.format(loop=head, turn=TURNS[turn].format(t=time))
    assert reported(tmp_path, sample=script) == [("sample", 9)]


@pytest.mark.parametrize(
    ("loop", "turn"),
    [
        ("for i in range(4):", "x = x + velocity(x, i)"),
        ("for i in (0.1, 0.5, 1.0):", "x = x + velocity(x, i)"),
        ("for i in range(steps):", "x = velocity(x, i); print(x.norm().item())"),
        ("for i in range(steps):", "x = velocity(x, i); torch_xla.sync()"),
        ("for i in range(steps):", "x = x * 0.5 + i"),
        ("for i in range(steps):", "words = x[i]; y = velocity(words)"),
        ("for layer in velocity.layers:", "x = layer(x)"),
        ("for i in range(steps):", "x = velocity.layers[i](x)"),
    ],
)
def test_what_is_short_or_ends_is_silent(tmp_path: Path, loop: str, turn: str) -> None:
    script = SAMPLER.format(loop=loop, turn=turn).replace(
        "import torch\n", "import torch\nimport torch_xla\n", 1
    )
    assert reported(tmp_path, sample=script) == []


MODEL = """
import torch
from torch import nn


class Denoiser(nn.Module):
    def forward(self, x, t):
        for block in self.blocks:
            x = block(x, t)
        return x

    def denoise(self, x, t):
        return x - self(x, t)

    def generate(self, x, steps):
        for t in range(steps):
            x = self.denoise(x, t)
        return x
"""
SOLVER = """
import torch


class Solver:
    def __init__(self, steps):
        self.steps = steps

    def integrate(self, field, x: torch.Tensor):
        for i in range(self.steps):
            x = x + field(x, i) / self.steps
        return x

    def backwards(self, field, x):
        return self.integrate(lambda y, t: -field(y, t), x)
"""
MAIN = """
import torch
from model import Denoiser
from solver import Solver


def main(noise):
    net = Denoiser().cuda()
    solver = Solver(50)
    {block}
        first = net.generate(noise.cuda(), 50)
        second = solver.integrate(net, noise.cuda())
    return first.cpu(), second.cpu()
"""


def test_a_sampler_in_another_file_is_reported_where_its_callers_take_no_gradients(
    tmp_path: Path,
) -> None:
    main = MAIN.format(block="with torch.inference_mode():")
    found = reported(tmp_path, main=main, model=MODEL, solver=SOLVER)
    assert sorted(found) == [("model", 15), ("solver", 9)]


def test_the_same_with_gradients_is_silent(tmp_path: Path) -> None:
    main = MAIN.format(block="if True:")
    assert reported(tmp_path, main=main, model=MODEL, solver=SOLVER) == []


TRAINER = """
import torch


class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer
        self.losses = []

    def train_pass(self, x):
        loss = self.net(x.cuda()).mean()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def validation_pass(self, x):
        self.losses.append(self.net(x.cuda()).mean())
"""
TRAIN = """
import torch
from trainer import Trainer


def train(net, optimizer, loader, val_loader):
    trainer = Trainer(net.cuda(), optimizer)
    for step, x in enumerate(loader):
        trainer.train_pass(x)
        if step % 100 == 0:
            for x in val_loader:
                trainer.validation_pass(x)
"""


def test_a_validation_by_a_method_of_another_file_is_reported(tmp_path: Path) -> None:
    assert reported(tmp_path, train=TRAIN, trainer=TRAINER) == [("train", 10)]
    reads = TRAINER.replace(".mean())", ".mean().item())")
    assert reported(tmp_path, train=TRAIN, trainer=reads) == []


CALLS = """
import torch


@torch.no_grad()
def collect(NAME, loader):
    outs = []
    for x in loader:
        outs.append(NAME(x))
    return outs
"""
GIVES = """
import json

import networks
import torch
import torch_xla
from calls import collect

model = torch.nn.Linear(8, 8).to("xla")
collect(GIVEN, [torch.ones(4, 8).to("xla") for _ in range(9)])
"""


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("fn", "model", True),
        ("transform", "torch.jit.script(model)", True),
        ("key", "torch.nn.Linear(8, 8).to('xla')", True),
        ("apply", "json.dumps", False),
        ("net_a", "torch.nn.functional.relu", False),
        ("apply", "undefined", True),
        ("apply", "networks.resnet", True),
        ("key", "undefined", False),
    ],
)
def test_what_callers_give_decides_before_the_name(
    tmp_path: Path, name: str, given: str, expected: bool
) -> None:
    calls, main = CALLS.replace("NAME", name), GIVES.replace("GIVEN", given)
    assert reported(tmp_path, calls=calls, main=main) == [("calls", 7)] * expected


COLLECTING = """
import torch

from lib import {imported}


@torch.no_grad()
def infer(net, images, steps):
    results = []
    images = images.cuda()
    for i in range(0, len(images), steps):
        out = net(images[i : i + steps])
        results.append({kept})
    return results
"""
LIB = """
import torch


def todevice(batch, device):
    if isinstance(batch, (list, tuple)):
        return [todevice(part, device) for part in batch]
    return batch.to(device)


def to_cpu(batch):
    return todevice(batch, "cpu")


def double(batch):
    return [2 * part for part in batch]
"""


@pytest.mark.parametrize(
    ("imported", "kept", "ends"),
    [
        ("to_cpu", "to_cpu(out)", True),
        ("todevice", 'todevice(out, "cpu")', True),
        ("double", "double(out)", False),
        ("todevice", 'todevice(out, "cuda")', False),
    ],
)
def test_a_turn_that_moves_what_it_keeps_to_the_host(
    tmp_path: Path, imported: str, kept: str, ends: bool
) -> None:
    script = COLLECTING.format(imported=imported, kept=kept)
    found = reported(tmp_path, infer=script, lib=LIB)
    assert found == ([] if ends else [("infer", 10)])


MODULE = """
import torch

model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    if step % 10 == 0:
        {switch}
        total = 0.0
        for _ in range(2 * step):
            x, y = batches.next()
            total += (model(x) - y).abs().mean().detach()
        print(total.item())
    model.train()
    x, y = batches.next()
    loss = (model(x) - y).abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("switch", "lines"), [("model.eval()", [9]), ("model.train()", []), ("hook.eval(1)", [])]
)
def test_an_evaluation_of_a_file_with_no_function(
    tmp_path: Path, switch: str, lines: list[int]
) -> None:
    text = MODULE.format(switch=switch)
    assert [line for _, line in reported(tmp_path, train=text)] == lines
