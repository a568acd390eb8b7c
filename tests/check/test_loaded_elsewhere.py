"""Tensors of a checkpoint that another file loads, or that another file uses."""

from __future__ import annotations

import textwrap
from pathlib import Path

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.folder import rewrite_folder

HELPERS = """
    import torch


    def scale(x, table, sign=None):
        return torch.where(x > 0, x, table)


    def shift(x, *, by):
        return torch.cat([x, by])


    def plain(x, table):
        table = table.to(x.device)
        return torch.where(x > 0, x, table)


    def load_two(path):
        state = torch.load(path, map_location="cpu")
        return state["mean"], 3, state["std"]
"""
TRAIN = """
    import torch
    import torch.nn.functional as F
    from helpers import load_two, plain, scale, shift


    def train(model, optimizer, loader, path):
        table = torch.load(path, map_location="cpu")
        mean, count, std = load_two(path)
        pair = load_two(path)
        for x, y in loader:
            x, y = x.to("{device}"), y.to("{device}")
            loss = scale(model(x), table).mean() + shift(x, by=table["by"]).mean()
            loss = loss + plain(model(x), table).mean()
            loss = loss + F.mse_loss(x, mean)  # here
            loss = loss + F.mse_loss(x, std.float())  # here
            loss = loss + F.mse_loss(x, pair[2])  # here
            loss = loss + torch.clamp(x, count).mean() + F.mse_loss(x, mean.to("{device}"))
            loss.backward()
            optimizer.step()


    train(torch.nn.Linear(2, 2).to("{device}"), None, [], "model.pt")
"""


def written(folder: Path, device: str) -> dict[str, str]:
    texts = {
        "helpers.py": textwrap.dedent(HELPERS),
        "train.py": textwrap.dedent(TRAIN.replace("{device}", device)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return texts


def test_a_tuple_of_another_file(tmp_path: Path) -> None:
    texts = written(tmp_path, "xla")
    lines = texts["train.py"].splitlines()
    expected = [number for number, line in enumerate(lines, 1) if line.endswith("# here")]
    hits = check_file(tmp_path / "train.py", Config())
    assert [hit.line for hit in hits if hit.code == "XLA830"] == expected


def test_an_argument_of_a_function_of_another_file(tmp_path: Path) -> None:
    written(tmp_path, "cuda")
    done = rewrite_folder(tmp_path)
    findings = {
        str(file.name): [note.line for note in file.findings if note.rule == "XLA830"]
        for file in done.files
    }
    assert findings["helpers.py"] == [6, 10]
    assert len(findings["train.py"]) == 3
