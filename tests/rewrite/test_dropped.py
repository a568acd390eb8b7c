"""What an edit would have needed that goes with the code around it."""

from __future__ import annotations

from pathlib import Path

from migrate.reading.tree.source import parse
from migrate.rewrite.story import rewrite_source


def test_a_step_in_a_branch_that_goes_needs_no_import() -> None:
    script = """\
import torch


def train(model, loader, optimizer):
    if torch.cuda.is_available():
        model = model.cuda()
    else:
        for x, y in loader:
            model(x.to("cuda"), y.to("cuda")).backward()
            optimizer.step()
    return model
"""
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert done.data.decode() == (
        'def train(model, loader, optimizer):\n    model = model.to("xla")\n    return model\n'
    )
