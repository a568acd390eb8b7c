"""A function that a step calls and that holds steps: one level of blocks, whichever file it is in."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

MAIN = """
    import torch
    from engine import Engine


    def main(loader):
        model = torch.nn.Linear(8, 8).cuda()
        engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x in loader:
            x = x.cuda()
            LINE


    if __name__ == "__main__":
        main([torch.ones(4, 8)])
"""
ENGINE = """
    class Engine:
        def __init__(self, model, optimizer):
            self.model, self.optimizer = model, optimizer

        def update(self, x):
            for _ in range(5):
                loss = self.model(x).mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss.detach()
"""


def rewritten(folder: Path, style: Style = "native", **files: str) -> dict[str, str]:
    """Return the rewritten files of a project; no finding may say that a loop got no step."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    notes = [(n.rule, n.message) for file in done.files for n in file.findings]
    assert not [n for n in notes if n[0] in ("step", "XLA206")]
    return {file.name.stem: file.after.decode() for file in done.files}


def blocks(text: str) -> list[tuple[int, str]]:
    """Return the indentation of each block of a step, and the first line in it."""
    found = re.findall(r"^( *)with (?:torch_xla|shims)\.step\(\):\n +(.*)$", text, re.MULTILINE)
    return [(len(indent), first) for indent, first in found]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("line", ["loss = engine.update(x)", "print(engine.update(x).item())"])
def test_the_file_with_the_inner_loop_has_the_blocks(
    tmp_path: Path, style: Style, line: str
) -> None:
    files = rewritten(tmp_path, style, main=MAIN.replace("LINE", line), engine=ENGINE)
    assert blocks(files["main"]) == []
    assert blocks(files["engine"]) == [
        (12, "loss = self.model(x).mean()"),
        (8, "loss = self.model(x).pow(2).mean()"),
    ]


def test_a_step_of_two_kinds_of_which_one_holds_steps(tmp_path: Path) -> None:
    plain = """
        class Plain:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer

            def update(self, x):
                self.model(x).sum().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
    """
    main = MAIN.replace("from engine", "from plain import Plain\n    from engine")
    main = main.replace(
        "engine = Engine(", "kind = Plain if len(loader) > 3 else Engine\n        engine = kind("
    )
    files = rewritten(
        tmp_path, main=main.replace("LINE", "engine.update(x)"), engine=ENGINE, plain=plain
    )
    assert blocks(files["main"]) == []
    assert len(blocks(files["engine"])) == 2
    assert blocks(files["plain"]) == [(8, "self.model(x).sum().backward()")]


def test_a_closure_in_the_loop_that_holds_steps(tmp_path: Path) -> None:
    main = """
        import torch


        class Trainer:
            def __init__(self, model):
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def backward(self, loss):
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


        def main(loader):
            model = torch.nn.Linear(8, 8).cuda()
            head = torch.nn.Linear(8, 8).cuda()
            trainer = Trainer(model)
            heads = {"head": Trainer(head)}
            for x in loader:
                x = x.cuda()

                def turn(x, train=True):
                    for _ in range(3):
                        loss = head(model(x).detach()).mean()
                        if train:
                            heads["head"].backward(loss)
                    total = model(x).mean()
                    if train:
                        trainer.backward(total)
                    return total

                loss = turn(x)
    """
    files = rewritten(tmp_path, main=main)
    assert blocks(files["main"]) == [
        (16, "loss = head(model(x).detach()).mean()"),
        (12, "total = model(x).mean()"),
    ]


def test_a_step_without_steps_in_it_keeps_its_block(tmp_path: Path) -> None:
    engine = ENGINE.replace("            for _ in range(5):\n", "            if True:\n")
    files = rewritten(tmp_path, main=MAIN.replace("LINE", "engine.update(x)"), engine=engine)
    assert blocks(files["main"]) == [(8, 'x = x.to("xla")')]
    assert blocks(files["engine"]) == []


SHARED = """
    import torch
    from tools import timed


    class Engine:
        def __init__(self, model):
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def backward(self, loss):
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


    def main(loader, others):
        model = torch.nn.Linear(8, 8).cuda()
        engine = Engine(model)
        for count, x in enumerate(loader):
            x = x.cuda()

            def turn(x, train=True):
                out = model(x)
                shown = out.mean().item()
                loss = out.pow(2).mean()
                if train:
                    engine.backward(loss)
                return loss, shown

            loss, shown = timed(lambda: turn(x))
            if count % 10 == 0:
                timed(lambda: turn(x, train=False))
                for y in others:
                    timed(lambda: turn(y.cuda(), train=False))
"""


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_function_that_two_loops_run_has_the_block(tmp_path: Path, style: Style) -> None:
    tools = "def timed(run):\n    return run()\n"
    files = rewritten(tmp_path, style, main=SHARED, tools=tools)
    assert blocks(files["main"]) == [(12, "out = model(x)")]
