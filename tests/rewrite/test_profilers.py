"""The step of a profiler: it trains nothing, whatever its name, and stays below the training step."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import Options, Style

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
    (file,) = rewrite_folder(tmp_path, options=Options(style=style), processes=1).files
    lines = (file.after or b"").decode().splitlines()
    (block,) = (line for line in lines if line.endswith("step():"))
    (profiler,) = (line for line in lines if "p.step()" in line)
    depth = len(block) - len(block.lstrip())
    assert len(profiler) - len(profiler.lstrip()) == depth
