"""Optimizers of schedulefree: their names hold "sched", and they are no schedulers."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import schedulefree
import torch
from schedulefree import AdamWScheduleFree, ScheduleFreeWrapper

model = torch.nn.Linear(3, 3)
{optimizer}
model.cuda()
for x in torch.utils.data.DataLoader(torch.ones(8, 3)):
    loss = model(x.cuda()).sum()
    loss.backward()
    {name}.step()
    {name}.zero_grad()
"""
MADE = [
    "schedulefree.AdamWScheduleFree(model.parameters(), lr=0.1)",
    "AdamWScheduleFree(model.parameters(), lr=0.1)",
    "ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=0.1), momentum=0.9)",
]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ["optimizer", "o"])
def test_one_before_the_move_keeps_its_weights(made: str, name: str) -> None:
    after = rewritten(f"{name} = {made}", name)
    assert "set_swap_module_params_on_conversion(True)" in after


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", ["optimizer", "o"])
def test_its_step_is_found(made: str, name: str) -> None:
    assert "with torch_xla.step():" in rewritten(f"{name} = {made}", name)


def rewritten(made: str, name: str) -> str:
    """Return the script with this optimizer, rewritten."""
    text = SCRIPT.format(optimizer=made, name=name)
    return rewrite_source(parse(text.encode(), Path("script.py"))).data.decode()
