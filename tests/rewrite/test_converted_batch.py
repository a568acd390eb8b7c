"""A batch whose parts move to a device that is chosen elsewhere is moved in the loop."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.rules.step.inputs import NOT_MOVED, NOT_SHOWN
from migrate.syntax.source import parse

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
    'y = batch["label"]\n            y = y.long().to(device)',
    'items = batch["items"]\n            y = items[0]\n            y = y.to(device)',
]


@pytest.mark.parametrize("move", MOVES)
def test_the_question_is_the_device(move: str, tmp_path: Path) -> None:
    text = textwrap.dedent(SCRIPT.replace("{move}", move))
    done = rewrite_source(parse(text.encode(), tmp_path / "train.py"))
    messages = [note.message for note in done.findings if note.rule == "step"]
    assert not [message for message in messages if NOT_MOVED in message or NOT_SHOWN in message]
    assert "with torch_xla.step():" in done.data.decode()


def test_a_batch_that_does_not_move(tmp_path: Path) -> None:
    text = textwrap.dedent(SCRIPT.replace("{move}", "batch = dict(batch)"))
    done = rewrite_source(parse(text.encode(), tmp_path / "train.py"))
    messages = [note.message for note in done.findings if note.rule == "step"]
    assert messages == ["is `batch` on the device? It is not moved in the loop"]


PARTS = [
    "x, y = [part.to(device) for part in batch]",
    "x, y = (part.cuda() for part in batch)",
    "parts = {k: v.to(device) for k, v in batch.items()}",
    "parts = {k: [part.to(device) for part in v] for k, v in batch.items()}",
    "parts = []\n            for part in batch:\n                parts.append(part.to(device))",
]
ELEMENTS = """
    import torch


    def run(model, criterion, loader):
        device = torch.device("cuda")
        model.to(device)
        optimizer = torch.optim.Adam(model.parameters())
        for batch in loader:
            {move}
            loss = criterion(model(first), second)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize("move", PARTS)
def test_a_batch_that_moves_part_by_part_under_other_names(move: str, tmp_path: Path) -> None:
    parts = ("x", "y") if move.startswith("x") else ("parts['x']", "parts['y']")
    text = ELEMENTS.replace("{move}", move)
    text = text.replace("first", parts[0]).replace("second", parts[1])
    done = rewrite_source(parse(textwrap.dedent(text).encode(), tmp_path / "train.py"))
    assert [note.message for note in done.findings if note.rule == "step"] == []
    assert "with torch_xla.step():" in done.data.decode()


def test_a_batch_of_which_nothing_moves(tmp_path: Path) -> None:
    text = ELEMENTS.replace("{move}", "x, y = [part.float() for part in batch]")
    text = text.replace("first", "x").replace("second", "y")
    done = rewrite_source(parse(textwrap.dedent(text).encode(), tmp_path / "train.py"))
    messages = [note.message for note in done.findings if note.rule == "step"]
    assert [NOT_MOVED in message for message in messages] == [True]


def test_an_option_with_the_name_of_the_batch_is_no_use_of_the_batch(tmp_path: Path) -> None:
    text = ELEMENTS.replace("{move}", "x, y = batch\n            x, y = x.cuda(), y.cuda()")
    text = text.replace("loss = criterion(model(first), second)", "out = model(x)\nLOSS")
    text = text.replace("LOSS", " " * 12 + "loss = criterion(model(out), y, options.batch.weight)")
    done = rewrite_source(parse(textwrap.dedent(text).encode(), tmp_path / "train.py"))
    assert [note.message for note in done.findings if note.rule == "step"] == []
    assert "with torch_xla.step():" in done.data.decode()


UNPACKED = """
    import torch


    def train(loader, cached, encode, diffusion):
        device = torch.device("cuda")
        model = torch.nn.Linear(4, 1).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in loader:
            if cached:
                x, y = batch
                x = x.to(device)
            else:
                image, y = batch
                image = image.to(device)
                x = encode(image)
            y = y.to(device)
            loss = diffusion.losses(model, x, dict(y=y))["loss"].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_a_batch_that_is_unpacked_and_moves(tmp_path: Path) -> None:
    """Where a library calls the model, the whole batch was asked for."""
    done = rewrite_source(parse(textwrap.dedent(UNPACKED).encode(), tmp_path / "train.py"))
    assert [note.message for note in done.findings if note.rule == "step"] == []
    assert "with torch_xla.step():" in done.data.decode()
