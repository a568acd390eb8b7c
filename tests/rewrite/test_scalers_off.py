"""grad-scaler: scalers that the script switches off itself."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.left.codes import code_of
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
    import torch

    HALF = False


    class Trainer:
        def __init__(self, model):
            self.model = model.cuda()
            self.scaler = {made}

        def step(self, x, optimizer):
            self.scaler.scale(self.model(x).mean()).backward()
            self.scaler.step(optimizer)
            self.scaler.update()

        def state(self):
            return {{"scaler": self.scaler.state_dict()}}


    def overfit(model, x, optimizer):
        scaler = {made}
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        return {{"scaler": scaler.state_dict()}}
"""


@pytest.mark.parametrize(
    "made",
    [
        "torch.cuda.amp.GradScaler(enabled=False)",
        "torch.cuda.amp.GradScaler(enabled=HALF)",
        "torch.amp.GradScaler('cuda', enabled=False)",
        "torch.GradScaler('cuda', enabled=HALF)",
    ],
)
def test_a_scaler_that_is_off_stays_as_it_is(made: str) -> None:
    source = parse(dedent(SCRIPT.format(made=made)).lstrip().encode(), Path("train.py"))
    done = rewrite_source(source)
    text = done.data.decode()
    assert not [note for note in done.findings if "scal" in note.message]
    assert "kept for checkpoints" not in text
    assert text.count("enabled=") == 2
    notes = (*done.edits, *done.findings, *done.hints)
    lines = source.text.splitlines()
    said = {lines[note.line - 1] for note in notes if code_of(note) == "XLA804"}
    assert not [line for line in said if made in line]


def test_a_scaler_that_may_be_on_is_switched_off() -> None:
    made = "torch.cuda.amp.GradScaler(enabled=model.half)"
    source = parse(dedent(SCRIPT.format(made=made)).lstrip().encode(), Path("train.py"))
    done = rewrite_source(source)
    assert "enabled=False" in done.data.decode()
    assert "XLA804" in map(code_of, done.edits)
