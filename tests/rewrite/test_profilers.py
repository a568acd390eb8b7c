"""The step of a profiler: it trains nothing, whatever its name, and stays below the training step."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

SCRIPT = """
    from contextlib import nullcontext
    from functools import partial

    import torch
    from torch.profiler import profile


    def train(model, optimizer, loader, on):
        model.cuda()
        context = partial(profile, with_stack=True) if on else nullcontext
        ENTER
            for x in loader:
                loss = model(x.cuda()).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                STEP
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("step", ["p.step()", "if on: p.step()"])
@pytest.mark.parametrize(
    "enter",
    [
        "with profile() as p:",
        "with torch.profiler.profile(with_stack=True) as p:",
        "with context() as p:",
        "with (profile() if on else nullcontext()) as p:",
        "p = profile()\n    if on:",
    ],
)
def test_a_profiler_steps_below_the_step(
    tmp_path: Path, style: Style, enter: str, step: str
) -> None:
    text = dedent(SCRIPT).lstrip().replace("ENTER", enter).replace("STEP", step)
    (tmp_path / "main.py").write_text(text)
    (file,) = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1).files
    lines = (file.after or b"").decode().splitlines()
    (block,) = (line for line in lines if line.endswith("step():"))
    (profiler,) = (line for line in lines if "p.step()" in line)
    depth = len(block) - len(block.lstrip())
    assert len(profiler) - len(profiler.lstrip()) == depth


ENGINES = """
    import deepspeed
    import torch
    from torch.profiler import profile


    class Trainer:
        def __init__(self, model, with_engine):
            self.model = model.cuda()
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.with_engine = with_engine
            if with_engine:
                self.engine, optimizer, _, _ = deepspeed.initialize(model=model)
                self.optimizer = optimizer

        def train(self, loader):
            optimizer = self.optimizer
            with profile() as p:
                for x in loader:
                    loss = self.model(x.cuda()).mean()
                    loss.backward()
                    if not self.with_engine:
                        optimizer.step()
                        optimizer.zero_grad()
                    p.step()
"""


def test_the_optimizer_of_a_trainer_that_may_use_an_engine(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(dedent(ENGINES).lstrip())
    (file,) = rewrite_folder(tmp_path, processes=1).files
    lines = (file.after or b"").decode().splitlines()
    (block,) = (number for number, line in enumerate(lines) if line.endswith("step():"))
    (update,) = (number for number, line in enumerate(lines) if "optimizer.step()" in line)
    (profiler,) = (line for line in lines if "p.step()" in line)
    depth = len(lines[block]) - len(lines[block].lstrip())
    assert block < update
    assert len(lines[update]) - len(lines[update].lstrip()) > depth
    assert len(profiler) - len(profiler.lstrip()) == depth
