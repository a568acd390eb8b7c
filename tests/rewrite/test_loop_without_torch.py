"""A loop that trains by the methods of subclasses, in a file that names nothing of torch."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

BASE = """
    class Base:
        def train(self):
            for batch in self.loader:
                self.run_step(batch)
"""
SOLVER = """
    import random

    import torch
    from base import Base


    class Solver(Base):
        def __init__(self, loader):
            self.loader = loader
            self.model = torch.nn.Linear(4, 4).to("cuda")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def run_step(self, batch):
            x = batch.to("cuda")
            if random.random() < 0.5:
                x = x.flip(0)
            loss = self.model(x).mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


    Solver([]).train()
"""


@pytest.mark.parametrize("style", ["native", "portable"])
def test_it_gets_its_step(tmp_path: Path, style: Style) -> None:
    """It was not read at all: no step, and no word of what its steps run in other files."""
    (tmp_path / "base.py").write_text(dedent(BASE).lstrip())
    (tmp_path / "solver.py").write_text(dedent(SOLVER).lstrip())
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    files = {file.name.name: file for file in done.files}
    assert "step():\n                self.run_step(batch)\n" in files["base.py"].after.decode()
    assert ("XLA113", 15) in [(note.rule, note.line) for note in files["solver.py"].findings]
