"""XLA113: draws on the host that decide what a step computes, wherever the step comes to them; and others."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.syntax.source import parse

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
        "if self.rng.random() < p: x = self.layer(x)",
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
        "if self.rng.random() < p: return x",
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


STATE = """
import random

import numpy as np
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.rng = np.random.default_rng(0)
        self.state = {}

    def forward(self, x, other=None):
        BEFORE
        DECIDES
            x = self.layer(x)
        return x

    def made(self):
        use = self.rng.random() < 0.5
        out = {"use": use, "size": 3}
        out["frames"] = self.rng.choice(range(8), 3).tolist()
        return out

    def fill(self, state, size):
        state["use"] = random.random() < 0.5
        state["size"] = size
"""


@pytest.mark.parametrize(
    ("before", "decides"),
    [
        ("out = self.made()", 'if out["use"]:'),
        ("out = self.made()", 'if out.get("use"):'),
        ("out = self.made()", 'for t in out["frames"]:'),
        ("out = dict(use=random.random() < 0.5)", 'if out["use"]:'),
        ('out = {**self.made(), "other": 1}', 'if not out["use"]:'),
        ("out = self.made() if other else {}", 'if out["use"] and self.training:'),
        ("out = {}; self.fill(out, 1)", 'if out["use"]:'),
        ('self.state["use"] = random.random()', 'if self.state["use"] > 0.5:'),
        ("frames = self.rng.choice(range(8), 3).tolist()", "for t in frames:"),
        ("frames = [0] + self.rng.choice(range(8), 3).tolist()", "for t in frames:"),
        ("n = random.randint(1, 3); frames = list(range(8))", "for t in frames[:n]:"),
        ("rest = [i for i in range(8) if random.random() < 0.5]", "for t in rest:"),
        ("frames = self.rng.choice(8, 2); rest = [i for i in (1, 2) if i not in frames]", "for t in rest:"),
        ("rest = list(self.rng.choice(8, 2))\n        rest += [1]", "for t in rest:"),
        ("frames = self.rng.choice(8, 2)", "for i, t in enumerate(sorted(frames)):"),
        ("n = random.randint(1, 3)", "for name in random.sample(other, n):"),
        ("y = random.random()\n        y *= 2", "if y > 1:"),
    ],
)  # fmt: skip
def test_a_draw_in_a_mapping_or_a_list_is_followed(before: str, decides: str) -> None:
    script = STATE.replace("BEFORE", before).replace("DECIDES", decides)
    assert lines(script) == [1 + script[: script.index(decides)].count("\n")]


@pytest.mark.parametrize(
    ("before", "decides"),
    [
        ("out = self.made()", 'if out["size"] > 2:'),
        ("out = self.made()", 'for t in range(out["size"]):'),
        ("out = {}; self.fill(out, 1)", 'if out["size"]:'),
        ("frames = [0, 1]", "for t in frames:"),
        ("names = random.sample(other, 2)", "for name in names:"),
    ],
)  # fmt: skip
def test_other_entries_and_lists_are_left_alone(before: str, decides: str) -> None:
    assert lines(STATE.replace("BEFORE", before).replace("DECIDES", decides)) == []


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("self.rng.choice(range(8), 3).tolist()", True),
        ("self.made()['frames']", True),
        ("range(3)", False),
        ("random.sample(other, 2)", False),
    ],
)
def test_a_comprehension_over_drawn_numbers(given: str, reported: bool) -> None:
    script = STATE.replace("BEFORE", f"parts = [self.layer(x) * t for t in {given}]")
    assert bool(lines(script.replace("DECIDES", "if other:"))) is reported


@pytest.mark.parametrize(
    ("statement", "reported"),
    [
        ("points = self.sampled(batch.masks) if use else None", True),
        ("points = None if use else (batch.masks > 0)", True),
        ("if use: points = corners(batch.masks)", True),
        ("rate = 0.1 if use else 0.2", False),
        ("if use: print(batch)", False),
        ("name = 'first' if use else 'second'", False),
    ],
)
def test_a_batch_of_an_unknown_class_is_computed_with(statement: str, reported: bool) -> None:
    script = STATE.replace("forward(self, x, other=None)", "forward(self, x, batch: Batch)")
    script = script.replace("BEFORE", "use = random.random() < 0.5").replace(
        "DECIDES\n", f"{statement}\n"
    )
    script = script.replace("            x = self.layer(x)", "        x = self.layer(x)")
    assert bool(lines(script)) is reported
