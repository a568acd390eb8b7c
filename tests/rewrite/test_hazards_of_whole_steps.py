"""What goes wrong in a function that gets the blocks of the steps that another file's loop runs by it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions

# A loop that names nothing of torch: the classes below it train, and one of them holds steps of its own.
BASE = """
    class Solver:
        def __init__(self, loader):
            self.loader, self.log, self.trains = loader, print, True

        def train(self):
            for index, batch in enumerate(self.loader):
                LINE

        def run_step(self, batch):
            raise NotImplementedError
"""
SMALL = """
    import random

    import torch
    from base import Solver


    class Small(Solver):
        def __init__(self, loader):
            super().__init__(loader)
            self.model = torch.nn.Linear(8, 8).cuda()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def run_step(self, batch):
            out = self.model(batch.cuda())
            if random.random() < 0.5:
                out = out * 2
            loss = out[out > 0].mean()
            if self.trains:
                if not loss.isfinite():
                    raise ValueError("not finite")
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()
"""
LARGE = """
    import torch
    from base import Solver


    class Large(Solver):
        def __init__(self, loader):
            super().__init__(loader)
            self.model = torch.nn.Linear(8, 8).cuda()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def run_step(self, batch):
            batch = batch.cuda()
            for _ in range(3):
                self.turn(batch)
            self.turn(batch * 2)

        def turn(self, batch):
            self.model(batch).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
MAIN = """
    import sys

    import torch
    from large import Large
    from small import Small

    kind = Small if sys.argv[1] == "small" else Large
    kind([torch.ones(4, 8)]).train()
"""


def hazards(folder: Path, line: str) -> set[tuple[str, str]]:
    """Return the hazards that are left in the project whose loop trains by `line`, with their files."""
    texts = {"base": BASE.replace("LINE", line), "small": SMALL, "large": LARGE, "main": MAIN}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text).lstrip())
    done = rewrite_folder(folder, options=RewriteOptions(), processes=1)
    after = {file.name.stem: file.after.decode() for file in done.files}
    assert "torch_xla.step()" in after["small"]
    assert "torch_xla.step()" not in after["base"]
    notes = [(file.name.stem, note.rule) for file in done.files for note in file.findings]
    return {(name, rule) for name, rule in notes if rule.startswith("XLA")}


@pytest.mark.parametrize(
    "line",
    [
        "self.run_step(batch)",
        "loss = self.run_step(batch); self.log(index)",
        "self.log(self.run_step(batch))",
        "if index < 9: self.run_step(batch)",
        "with self.timer: self.run_step(batch)",
        "if index < 9:\n                    self.run_step(batch)",
        "with self.timer:\n                    self.log(index)\n                    self.run_step(batch)",
        "loss = self.run_step(batch) if index else None",
    ],
)
def test_the_loop_leads_into_the_functions_that_have_its_blocks(tmp_path: Path, line: str) -> None:
    expected = {("small", "XLA103"), ("small", "XLA110"), ("small", "XLA113")}
    assert hazards(tmp_path, line) == expected


def test_what_stands_behind_such_a_call_is_in_no_step(tmp_path: Path) -> None:
    line = "loss = self.run_step(batch)\n" + " " * 16 + "if loss > 3:\n" + " " * 20 + "break"
    assert ("base", "XLA110") not in hazards(tmp_path, line)
