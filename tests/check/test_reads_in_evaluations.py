"""XLA208: functions that read values of the device, called at every step of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.syntax.source import parse

METRIC = """\
import torch


def errors(pred, target):
    return {"mean": (pred - target).abs().mean().item()}


def tensors(pred, target):
    return {"mean": (pred - target).abs().mean()}
"""
SCRIPT = """\
import torch

from metric import errors, tensors


def main(loader, frames):
    model = torch.nn.Linear(4, 4).cuda()
    model.eval()
    history = []
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        with torch.no_grad():
            pred = model(x)
        {line}
    {after}
    return history


if __name__ == "__main__":
    main([], [])
"""


@pytest.mark.parametrize(
    ("line", "after", "reported"),
    [
        ("history.append(errors(pred, y))", "", True),
        ("history.append(tensors(pred, y))", "", False),
        ("history.append(pred)", "print(errors(pred, y))", False),
        ("history.append(errors(1.0, 2.0))", "", False),
    ],
)
def test_a_function_of_another_file(tmp_path: Path, line: str, after: str, reported: bool) -> None:
    (tmp_path / "metric.py").write_text(METRIC)
    (tmp_path / "train.py").write_text(SCRIPT.format(line=line, after=after))
    found = check_paths([tmp_path], Config()).findings
    assert bool([f for f in found if f.code == "XLA208" and f.path.name == "train.py"]) is reported


def test_a_loop_over_batches_that_moves_them_does_not_sample() -> None:
    text = """
import torch


@torch.no_grad()
def evaluate(model, loader):
    model.cuda()
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        print(model(x).sum().item())


@torch.no_grad()
def sample(model, z, scales):
    model.cuda()
    scales = scales.cuda()
    for turn in range(50):
        z = model(z) * scales[turn].item()
    return z
"""
    found = check_source(parse(text.encode(), Path("train.py")), Config(select=("XLA201",)))
    assert [text.splitlines()[f.line - 1].strip() for f in found] == [
        "z = model(z) * scales[turn].item()"
    ]


TRAINER = """\
import numpy as np
import torch


class Trainer:
    def __init__(self, net, batches, checks):
        self.net = net.cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.batches, self.checks = batches, checks

    def train_step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.net(x.cuda()), y.cuda())
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}

    def check_step(self, batch):
        x, y = batch
        out = self.net(x.cuda())
        right = (out.argmax(1) == y.cuda()).sum()
        return {"right": READ, "logits": out}

    def check_all(self):
        return [self.check_step(batch) for batch in self.checks]

    def run(self, epochs, steps):
        for _ in range(epochs):
            losses = []
            for _ in range(steps):
                losses.append(self.train_step(next(self.batches)))
            with torch.no_grad():
                self.net.eval()
                results = []
                for _ in range(steps):
                    results.append(self.check_step(next(self.checks)))
                self.check_all()
                self.net.train()
"""


@pytest.mark.parametrize("read", ["right.detach().cpu().numpy()", "right"])
def test_a_method_that_evaluates_one_batch(read: str) -> None:
    text = TRAINER.replace("READ", read)
    config = Config(select=("XLA208",))
    lines = [f.line for f in check_source(parse(text.encode(), Path("train.py")), config)]
    evaluation = "results.append(self.check_step(next(self.checks)))"
    element = "return [self.check_step(batch) for batch in self.checks]"
    expected = [element, evaluation] if read != "right" else []
    assert [text.splitlines()[line - 1].strip() for line in lines] == expected


def test_a_function_of_another_file_that_evaluates_one_batch(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(
        "import torch\n\n\n@torch.no_grad()\ndef check(net, batch):\n    x, y = batch\n"
        "    return (net(x.cuda()).argmax(1) == y.cuda()).sum().item()\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\n\nfrom steps import check\n\n\ndef evaluate(net, batches):\n    results = []\n"
        "    for batch in batches:\n        results.append(check(net, batch))\n    return results\n"
    )
    reports = check_paths([tmp_path], Config(select=("XLA208",))).findings
    assert [(report.path.name, report.line) for report in reports] == [("train.py", 9)]


def test_an_evaluation_below_a_training_loop_is_no_step_of_one(tmp_path: Path) -> None:
    text = """
import torch


def train(env, model, steps):
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def evaluate():
        total = torch.zeros(4, device="cuda")
        for i in range(100):
            with torch.no_grad():
                total = total + model(env.reset().cuda())
        return total.mean().item()

    for step in range(steps):
        for x in env.batches():
            optimizer.zero_grad()
            model(x.cuda()).mean().backward()
            optimizer.step()
        with torch.no_grad():
            print(evaluate())
"""
    config = Config(select=("XLA208",))
    assert not check_source(parse(text.encode(), Path("train.py")), config)
