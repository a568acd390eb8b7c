"""XLA113: draws on the host that decide what a step computes, wherever the step comes to them; and others."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.reading.tree.source import parse

MODULE = """
import random
from random import choice

import numpy as np
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.rng = np.random.default_rng(0)
        self.fixed = random.random()

    def forward(self, x, p=0.1):
        LINES
        return x
"""


def lines(script: str) -> list[int]:
    found = check_source(parse(script.encode(), Path("net.py")), Config())
    return [finding.line for finding in found if finding.code == "XLA113"]


@pytest.mark.parametrize(
    "statement",
    [
        "if random.random() < p: x = self.layer(x)",
        "if self.training and np.random.rand() < p: x = self.layer(x)",
        "if choice([True, False]): x = x * 2",
        "if self.rng.random() < p: return x",
        "if torch.rand(1) < p: x = x.flip(0)",
        "if torch.rand(()).item() < p: x = x.flip(0)",
        "x = self.layer(x) if not random.randint(0, 1) else x",
        "for _ in range(random.randint(1, 3)): x = self.layer(x)",
        "while np.random.uniform() < p: x = self.layer(x)",
        "n = float(random.random()); x = x if n < p else self.layer(x)",
    ],
)
def test_a_draw_that_decides_is_reported(statement: str) -> None:
    script = MODULE.replace("LINES", statement)
    assert lines(script) == [1 + script[: script.index(statement)].count("\n")]


@pytest.mark.parametrize(
    "statement",
    [
        "if self.fixed < p: x = self.layer(x)",
        "if len(x) > p: x = self.layer(x)",
        "if random.random() < p: print('now')",
        "x = x * random.random()",
        "x = torch.where(torch.rand(1, device=x.device) < p, x, self.layer(x))",
        "names = random.sample(['a', 'b'], 1); x = self.layer(x) if names is not None else x",
        "random.seed(1); x = self.layer(x) if p else x",
    ],
)
def test_another_is_not(statement: str) -> None:
    assert lines(MODULE.replace("LINES", statement)) == []


FILES = {
    "train.py": """
        import torch
        from drop import Drop
        from net import Net


        def step(batch, net, optimizer, drop):
            x, y = batch
            x, y = x.cuda(), y.cuda()
            loss, shown = net(x, y, drop)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return shown


        def train(loader):
            net = Net(["a", "b"]).cuda()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            drop = Drop(0.5)
            for batch in loader:
                step(batch, net, optimizer, drop)


        train([(torch.ones(2, 4), torch.ones(2, 4))])
    """,
    "net.py": """
        import torch
        from losses import total


        class Net(torch.nn.Module):
            def __init__(self, names):
                super().__init__()
                self.heads = torch.nn.ModuleDict({n: torch.nn.Linear(4, 4) for n in names})

            def forward(self, x, y, drop):
                return total({n: head(x) for n, head in self.heads.items()}, y, drop)
    """,
    "losses.py": """
        import torch.nn.functional as F


        def distance(a, b, reduce=False):
            loss = F.smooth_l1_loss(a, b, reduction="none")
            if reduce:
                loss = loss.mean()
            return loss


        def total(out, y, drop):
            shown, losses = {}, {}
            for name in out.keys():
                guess = out[name]
                loss = distance(guess, y)
                shown.update({name: loss.mean().item()})  # XLA201
                losses[name] = loss
            return drop(losses), shown
    """,
    "drop.py": """
        import random

        import torch


        class Drop:
            def __init__(self, p):
                self.p = p

            def __call__(self, losses: dict[str, torch.Tensor]):
                stacked = torch.stack([losses[key] for key in sorted(losses)])
                coefficients = torch.ones_like(stacked)
                highest = torch.argmax(stacked)
                for i in range(len(stacked)):
                    if i != highest:  # XLA110
                        if random.random() < self.p:  # XLA113
                            coefficients[i] = 0
                assert torch.all(coefficients.sum(dim=0) >= 1)  # XLA110
                return (coefficients * stacked).sum()
    """,
}


def test_what_a_step_comes_to_through_files_and_objects(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    expected = {
        (name, number, line.rpartition("# ")[2])
        for name in FILES
        for number, line in enumerate((tmp_path / name).read_text().splitlines(), 1)
        if "# XLA" in line
    }
    found = {
        (finding.path.name, finding.line, finding.code)
        for finding in check_paths([tmp_path], Config()).findings
        if finding.code in ("XLA110", "XLA113", "XLA201") and finding.path.name != "train.py"
    }
    assert found == expected
