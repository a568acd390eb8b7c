"""XLA112 and XLA113: draws of the host that reach a step through files, methods, attributes and loops."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.syntax.source import parse

TRAINING = """
import random

import numpy as np
import torch
from lengths import Lengths, draw, order, whole
from rollout import rollout


def train(model, loader, optimizer):
    lengths = Lengths()
    for x in loader:
        x = x.cuda()
        LINES
        loss = rollout(model, x, n)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FILES = {
    "lengths.py": """
        import random

        import torch


        def draw(most):
            if most < 2:
                return most
            return 1 + torch.randint(most - 1, (1,)).item()


        def whole(x):
            return x.shape[1]


        def order(most, shuffle=False):
            return mixed(most, shuffle=shuffle)


        def mixed(most, shuffle=False):
            if shuffle:
                return random.choice([1, 2, 3])
            return most


        class Lengths:
            def next(self):
                return random.choice([1, 2, 3])
    """,
    "rollout.py": """
        def rollout(model, x, length, scale=1.0):
            part = x[:, :length]
            return model(part).mean() * scale
    """,
}


def found(folder: Path, lines: str) -> list[tuple[str, int]]:
    """Return the file and the line of each XLA112 of the project."""
    script = TRAINING.replace("LINES", lines.replace("\n", "\n        "))
    (folder / "train.py").write_text(script.lstrip())
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip())
    hits = check_paths([folder], Config()).findings
    return [(hit.path.name, hit.line) for hit in hits if hit.code == "XLA112"]


@pytest.mark.parametrize(
    "lines",
    [
        "n = random.randint(1, 8)",
        "n = torch.randint(1, 8, (1,)).item()",
        "n = int(np.random.randint(1, 8))",
        "n = draw(8)",
        "n = order(8, shuffle=True)",
        "n = order(8, len(loader) > 2)",
        "n = lengths.next()",
        "for n in torch.randint(8, (2,)): pass",
        "for n in random.sample(range(8), 2): pass",
        "n = 4\nif len(loader) > 2:\n    n = random.randint(1, 8)",
        "if len(loader) > 2:\n    n = draw(8)\nelse:\n    n = 4",
        "m = min(8, 2 * draw(4))\nn = m + 1",
    ],
)
def test_a_length_that_a_function_of_another_file_cuts_by(tmp_path: Path, lines: str) -> None:
    assert found(tmp_path, lines) == [("rollout.py", 2)]


@pytest.mark.parametrize(
    "lines",
    [
        "n = whole(x)",
        "n = order(8)",
        "n = order(8, shuffle=False)",
        "n = 4",
        "n = random.randint(1, 8)\nn = 4",
        "for n in (2, 4): pass",
        "for n in random.sample(loader.sizes, 2): pass",
        "if len(loader) > 2:\n    n = 4\nelse:\n    n = 8",
    ],
)
def test_other_lengths(tmp_path: Path, lines: str) -> None:
    assert found(tmp_path, lines) == []


MODEL = """
import random

import numpy as np
import torch


class Controller:
    def __init__(self):
        self.most = 0.5
        self.seed = random.random()

    def ratio(self, size):
        if size == 0:
            return 1.0
        return np.random.rand() * self.most


class Net(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count))
        self.controller = Controller()
        self.cut = random.random()
        self.depth = count

    def choose(self):
        self.depth = random.choice([1, 2, 3])

    def forward(self, x):
        self.choose()
        share = self.controller.ratio(len(x))
        for at, block in enumerate(self.blocks):
            block.used = at < int(share * len(self.blocks))
        LINES
        return x
"""


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        ("for at in range(self.depth): x = self.blocks[at](x)", True),
        ("for b in self.blocks: x = b(x) if b.used else x", True),
        ("for block in self.blocks: x = block(x) if block.used else x", True),
        ("x = self.blocks[0](x) if share > 0.5 else x", True),
        ("x = self.blocks[0](x) if self.cut > 0.5 else x", False),
        ("x = self.blocks[0](x) if self.controller.seed > 0.5 else x", False),
        ("x = self.blocks[0](x) if self.controller.most > 0.5 else x", False),
    ],
)
def test_an_attribute_that_a_method_draws(lines: str, reported: bool) -> None:
    script = MODEL.replace("LINES", lines)
    hits = check_source(parse(script.encode(), Path("net.py")), Config())
    line = 1 + script[: script.index(lines)].count("\n")
    assert [hit.line for hit in hits if hit.code == "XLA113"] == [line] * reported


SET = {
    "train.py": """
        import random

        import torch
        from net import Net


        def main(loader):
            model = Net(4).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                x = x.cuda()
                depth = random.randint(1, 4)
                LINE
                model(x).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    """,
    "net.py": """
        import torch


        class Net(torch.nn.Module):
            def __init__(self, count):
                super().__init__()
                self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count))
                self.depth = count

            def set_depth(self, depth):
                self.depth = depth

            def forward(self, x):
                for at in range(self.depth):
                    x = self.blocks[at](x)
                return x
    """,
}


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("model.set_depth(depth)", True),
        ("model.set_depth(depth=random.choice([1, 2]))", True),
        ("model.depth = depth", True),
        ("model.set_depth(4)", False),
        ("model.depth = len(loader)", False),
    ],
)
def test_an_attribute_that_another_file_draws(tmp_path: Path, line: str, reported: bool) -> None:
    for name, text in SET.items():
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip().replace("LINE", line))
    hits = check_paths([tmp_path], Config()).findings
    found = [(hit.path.name, hit.line) for hit in hits if hit.code == "XLA113"]
    assert found == [("net.py", 14)] * reported


AUGMENT = """
import random

import texts as F
import torch
from torch.nn import functional as layers


def clipped(features):
    return layers.relu(features)


def named(features):
    return F.relu(features)


def normalized(features):
    if features.ndim > 2:
        features = features - torch.mean(features, dim=1, keepdim=True)
    return features


def described(features):
    return features.shape


def masked(features):
    y = features.detach()
    start = random.randint(0, 9)
    y[:, start : start + 4] = 0
    return y
"""
AUGMENTED = """
from augment import clipped, described, masked, named, normalized


def train(model, loader, optimizer, device):
    for batch in loader:
        features = batch["features"]
        LINES
        features = masked(features)
        loss = model(features).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
CHOSEN = """\
if model.takes_features:
    features = features.float().to(device)
else:
    features, _ = model.encoder(batch["waves"].to(device))"""


@pytest.mark.parametrize(
    ("lines", "is_drawn"),
    [
        ("features = normalized(features.float().to(device))", True),
        ("features = features.float().to(device)\nfeatures = normalized(features)", True),
        (f"{CHOSEN}\nfeatures = normalized(features)", True),
        (CHOSEN, True),
        ("features = described(features.float().to(device))", False),
        ("features = clipped(features.float().to(device))", True),
        ("features = named(features.float().to(device))", False),
    ],
)
def test_what_another_file_hands_back_is_on_the_device(
    tmp_path: Path, lines: str, is_drawn: bool
) -> None:
    (tmp_path / "augment.py").write_text(AUGMENT.lstrip())
    (tmp_path / "texts.py").write_text("def relu(features):\n    return str(features.shape)\n")
    text = AUGMENTED.replace("LINES", lines.replace("\n", "\n        "))
    (tmp_path / "train.py").write_text(text.lstrip())
    hits = check_paths([tmp_path], Config()).findings
    codes = {hit.code for hit in hits if hit.path.name == "augment.py"}
    assert ("XLA112" in codes) == is_drawn
