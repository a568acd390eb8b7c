"""Optimizers, or what may be one, that are only handed to code outside of the project."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style


def said(folder: Path, script: str, style: Style = "native") -> list[tuple[str, int]]:
    """Return the rules and lines of what is said of steps and of the order of optimizers."""
    (folder / "main.py").write_text(textwrap.dedent(script).lstrip())
    (file,) = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1).files
    return [(n.rule, n.line) for n in file.findings if n.rule in ("step", "optimizer-order")]


GIVEN = """
import library


def run(net, NAME, loader):
    net.cuda()
    LINES
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("o", "for x in loader: library.train_one(net, o, x.cuda())"),
        ("sgd", "engine = library.Engine(net, sgd)"),
        ("opt_g", "library.fit(model=net, optimizer=opt_g, data=loader)"),
    ],
)
def test_what_goes_with_a_model_that_moves(
    tmp_path: Path, style: Style, name: str, lines: str
) -> None:
    script = GIVEN.replace("NAME", name).replace("LINES", lines)
    assert said(tmp_path, script, style) == [("optimizer-order", 5)]


def test_what_an_object_keeps(tmp_path: Path) -> None:
    script = """
        import library


        class Runner:
            def __init__(self, net, o):
                self.net, self.o = net, o

            def fit(self, loader):
                self.net.cuda()
                for x in loader:
                    library.train_one(self.net, self.o, x.cuda())
    """
    assert said(tmp_path, script) == [("optimizer-order", 9)]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("criterion", "library.evaluate(net, criterion, loader)"),
        ("cfg", "library.evaluate(net, cfg)"),
        ("o: int", "library.resize(net, o)"),
        ("o=None", "library.resize(net, o)"),
        ("o", "library.resize(net, o)\n    print(o.height)"),
        ("o", "library.log(o)"),
        ("o", "torch.save(o, 'o.pt')\n    net(o)"),
    ],
)
def test_what_is_no_optimizer(tmp_path: Path, name: str, lines: str) -> None:
    script = GIVEN.replace("NAME, loader", f"loader, {name}").replace("LINES", lines)
    assert said(tmp_path, "import torch\n" + script.lstrip()) == []


LOOP = """
import library
import torch


def train(model, o, loader):
    for x in loader:
        x = x.cuda()
        LINE


def main(loader):
    model = torch.nn.Linear(8, 8).cuda()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("library.train_one(model, o, x)", True),
        ("library.step(o, lambda: model(x).mean())", True),
        ("library.save(model, o)", False),
        ("library.get_lr(o)", False),
        ("library.evaluate(model, x)", False),
    ],
)
def test_a_loop_that_hands_an_optimizer_to_a_library(
    tmp_path: Path, style: Style, line: str, reported: bool
) -> None:
    assert said(tmp_path, LOOP.replace("LINE", line), style) == [("step", 6)] * reported


def test_a_mark_says_that_it_trains(tmp_path: Path) -> None:
    script = LOOP.replace("for x in loader:", "for x in loader:  # migrate: step")
    script = script.replace("LINE", "library.train_one(model, o, x)")
    assert said(tmp_path, script) == []


WRAPPED = """
with torch.enable_grad():
            library.train_one(model, o, x)
"""


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (WRAPPED.strip(), [6]),  # in a block of the loop
        ("for part in x.split(2):\n            library.train_one(model, o, part)", [8]),
        ("model(x).mean().backward()\n        library.update(model, o)\n        o.step()", []),
        ("library.warmup(o)", []),
        ("library.get_last_lr(o)", []),
        ("library.run_step(model, x)", [6]),
        ("print(o, model(x))", []),
    ],
)
def test_no_loop_is_reported_twice_or_left_out(tmp_path: Path, line: str, lines: list[int]) -> None:
    assert said(tmp_path, LOOP.replace("LINE", line)) == [("step", number) for number in lines]


def test_an_epoch_whose_training_is_seen_is_not_reported(tmp_path: Path) -> None:
    script = """
        import library
        import torch


        def train(model, o, loader):
            for x in loader:
                model(x.cuda()).mean().backward()
                o.step()


        def main(loader):
            model = torch.nn.Linear(8, 8).cuda()
            o = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(3):
                train(model, o, loader)
                library.summarize(model, o)
    """
    assert said(tmp_path, script) == []
