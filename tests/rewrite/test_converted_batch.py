"""A batch whose parts move to a device that is chosen elsewhere is moved in the loop."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.reading.tree.source import parse
from migrate.rewrite.story import rewrite_source

SCRIPT = """
    import torch


    def setup_device(device):
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(device)


    def run(config, model, loader):
        device = setup_device(config.device)
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters())
        for batch in loader:
            {move}
            x = batch["video"]
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
"""
MOVES = [
    "batch = {k: v.to(device) for k, v in batch.items()}",
    "batch = dict((k, v.to(device)) for k, v in batch.items())",
    "batch = batch.to(device)",
]


@pytest.mark.parametrize("move", MOVES)
def test_the_question_is_the_device(move: str, tmp_path: Path) -> None:
    text = textwrap.dedent(SCRIPT.replace("{move}", move))
    done = rewrite_source(parse(text.encode(), tmp_path / "train.py"))
    messages = [note.message for note in done.findings if note.rule == "step"]
    assert [m for m in messages if "not moved in the loop" in m] == []
    assert "with torch_xla.step():" in done.data.decode()


def test_a_batch_that_does_not_move(tmp_path: Path) -> None:
    text = textwrap.dedent(SCRIPT.replace("{move}", "batch = dict(batch)"))
    done = rewrite_source(parse(text.encode(), tmp_path / "train.py"))
    messages = [note.message for note in done.findings if note.rule == "step"]
    assert messages == ["is `batch` on the device? It is not moved in the loop"]
