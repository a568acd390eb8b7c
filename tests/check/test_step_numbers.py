"""XLA112: numbers that change at each step and are constants of the graph; and those that are not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

TRAINING = """
import torch


def train(model, loader, optimizer, device):
    table = torch.linspace(0, 1, 1000).cuda()
    position = 0
    for epoch in range(9):
        for step, (x, y) in enumerate(loader):
            x, y = x.cuda(), y.cuda()
            loss = model(x, y)
            LINE
            loss.backward()
            optimizer.step()
            position += 1
"""
SAMPLING = """
import torch


@torch.no_grad()
def sample(model, n):
    x = torch.randn(n, 4, device="cuda")
    table = torch.linspace(0, 1, 60, device="cuda")
    steps = reversed(range(60))
    for LOOP:
        y = model(x, torch.full((n,), i, device="cuda"))
        x = LINE
    return x
"""


def lines(script: str) -> list[int]:
    """Return the lines of which the check says that a number changes at each step."""
    found = check_source(parse(script.encode(), Path("train.py")), Config())
    return [one.line for one in found if one.code == "XLA112"]


@pytest.mark.parametrize(
    "line",
    [
        "loss = loss * table[step]",
        "loss = loss + x[:, position].mean()",
        "loss = loss + x[:, : position + 1].mean()",
        "loss = loss + (x ** step).mean()",
        "loss = loss + x.pow(step).mean()",
        "loss = loss + torch.roll(x, step).mean()",
        "loss = loss + torch.arange(step, device='cuda').sum()",
        "loss = loss + torch.zeros(step, 2, device='cuda').sum()",
        "loss = loss + x.narrow(0, step, 2).mean()",
        "loss = loss * table[epoch]",
    ],
)
def test_a_constant_of_the_graph(line: str) -> None:
    assert lines(TRAINING.replace("LINE", line)) == [12]


@pytest.mark.parametrize(
    "line",
    [
        "loss = loss * step + position",
        "loss = loss / (step + 1)",
        "loss = loss * (1 - 0.9 ** step)",
        "loss = loss + torch.full((4,), step, device='cuda').sum()",
        "loss = loss + x.clamp(max=step).mean()",
        "loss = torch.add(loss, loss, alpha=step)",
        "loss = loss * table[torch.tensor(step, device='cuda')]",
        "loss = loss + table[0] + x[:, 1:].mean()",
        "loss = loss * table.tolist()[step]",
        "names = [x, y]; loss = loss + names[step % 2].sum()",
        "loss = loss + sum(x[k].sum() for k in range(4))",
        "optimizer.param_groups[0]['lr'] = 0.1 / (step + 1)",
        "seen = list(loader)[step]",
    ],
)
def test_data_of_the_graph_or_of_the_host(line: str) -> None:
    assert lines(TRAINING.replace("LINE", line)) == []


@pytest.mark.parametrize(
    "loop",
    ["i in range(60)", "i in reversed(range(60))", "i in tqdm(range(60))", "i in steps"],
)
@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_sampling_loop_before_and_after_the_rewrite(loop: str, style: str) -> None:
    script = SAMPLING.replace("LOOP", loop).replace("LINE", "x - table[i] * y")
    assert lines(script) == [12]
    done = rewrite_source(
        parse(script.encode(), Path("train.py")), options=RewriteOptions(style=style)
    )
    assert [(note.line, note.rule) for note in done.findings if note.rule == "XLA112"] == [
        (12, "XLA112")
    ]
    assert lines(script.replace("table[i]", "0.1 * i")) == []


def test_a_position_that_a_call_passes_and_one_that_a_module_counts() -> None:
    script = """
        import torch


        class Decoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("cache", torch.zeros(4, 128, 8))
                self.pos = 0

            def forward(self, x):
                self.cache[:, self.pos] = x
                self.pos += 1
                return self.cache[:, : self.pos].mean(1)


        def weighted(x, at):
            x = x.cuda()
            table = torch.linspace(0, 1, 100, device="cuda")
            return x * table[at]


        def train(model, loader, optimizer):
            for step, x in enumerate(loader):
                loss = weighted(model(x.cuda()), step).mean()
                loss.backward()
                optimizer.step()
    """
    assert lines(textwrap.dedent(script).lstrip()) == [11, 13, 19]


DRAWN_INDEX = """\
import random

import numpy as np
import torch


def train(model, loader, optimizer):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        {made}
        loss = model({taken}, y)
        loss.backward()
        optimizer.step()
"""


def of_index(made: str, taken: str) -> list[str]:
    text = DRAWN_INDEX.format(made=made, taken=taken)
    found = check_source(parse(text.encode(), Path("script.py")), Config())
    return [one.code for one in found if one.code == "XLA112"]


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        ("perm = torch.randperm(len(x)).tolist()", "x[perm]"),
        ("perm = torch.randperm(8, generator=loader.generator).tolist()", "x[perm]"),
        ("perm = torch.randperm(8).tolist()", "x[perm[:4]]"),
        ("perm = torch.randperm(8).tolist()", "x[:, perm]"),
        ("perm = random.sample(range(8), 4)", "x[perm]"),
        ("perm = random.sample(range(8), k=4)", "x[sorted(perm)]"),
        ("perm = [at + 3 for at in random.sample(range(8), k=4)]", "x[perm]"),
        ("perm = [random.randrange(8) for at in range(4)]", "x[perm]"),
        ("perm = np.random.permutation(8)", "x[perm]"),
        ("perm = list(np.random.permutation(8))", "x[perm]"),
    ],
)
def test_a_list_of_drawn_numbers_is_data(made: str, taken: str) -> None:
    assert of_index(made, taken) == []


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        ("at = torch.randint(8, (1,)).item()", "x[at]"),
        ("at = random.randrange(8)", "x[at]"),
        ("at = torch.randperm(8).tolist()[0]", "x[at]"),
        ("at = random.sample(range(8), random.randint(1, 4))", "x[at]"),
        ("at = [n + 3 for n in random.sample(range(8), random.randint(1, 4))]", "x[at]"),
        ("at = [n for n in range(8) if random.random() < 0.1]", "x[at]"),
        ("at = torch.randperm(8).tolist()[: random.randint(1, 8)]", "x[at]"),
        ("at = random.sample(range(8), 2)[0]", "x[:at]"),
    ],
)
def test_a_drawn_number_or_a_drawn_count_is_reported(made: str, taken: str) -> None:
    assert of_index(made, taken)


INPUTS = """
import random

import torch


def inputs_of(processor, texts):
    found = processor(text=texts, return_tensors="pt")
    MOVE
    return found, len(texts)


def train(model, loader, optimizer, processor):
    for texts in loader:
        inputs, count = inputs_of(processor, texts)
        hidden = random.sample(range(8), random.randint(1, 4))
        labels = inputs["ids"].clone()
        labels[0, hidden] = -100
        loss = model(labels)
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("move", "moves"),
    [
        ("for key in found:\n        found[key] = found[key].to('cuda')", True),
        ("for key, value in found.items():\n        found[key] = value.cuda()", True),
        ("for key in found:\n        found[key] = found[key].float()", False),
        (
            "for key in found:\n        if key != 'ids':\n            found[key] = found[key].to('cuda')",
            False,
        ),
    ],
)
def test_a_loop_that_moves_each_entry_moves_the_whole(move: str, moves: bool) -> None:
    """What a processor gives is no dictionary of the script: only the loop says where its tensors are."""
    assert bool(lines(INPUTS.replace("MOVE", move))) == moves
