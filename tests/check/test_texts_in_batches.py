"""Lists of texts in a batch are no shapes: nothing is said of them where the dataset shows that they are."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import csv
import torch
from torch.utils.data import DataLoader, Dataset


class Captions(Dataset):
    def __init__(self, path, boxes):
        with open(path, newline="") as file:
            self.captions = {row[1]: row[2] for row in csv.reader(file)}
        self.names = list(self.captions)
        self.lines = open(path).read().splitlines()
        self.boxes = boxes
        self.filled = {}
        self.mixed = {}
        with open(path, newline="") as file:
            table = csv.reader(file)
            for number, entry in enumerate(table):
                self.filled[entry[0]] = entry[1]
                self.mixed[entry[0]] = entry[1]
                self.mixed[entry[1]] = boxes[entry[0]]

    def __getitem__(self, i):
        return SAMPLE

COLLATE

loader = DataLoader(Captions("c.csv", {}), 4, collate_fn=collate)
"""
PLAIN = """
def collate(batch):
    return torch.stack([x[0] for x in batch]), [x[1] for x in batch]
"""
UNPACKED = """
def collate(batch):
    return torch.stack([a for a, b in batch]), [b for a, b in batch]
"""
ZIPPED = """
def collate(batch):
    first, second = zip(*batch)
    return torch.stack(first), second
"""
KEYED = """
def collate(batch):
    return torch.stack([x["a"] for x in batch]), [x["b"] for x in batch]
"""


def reported(folder: Path, sample: str, collate: str) -> bool:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("SAMPLE", sample).replace("COLLATE", dedent(collate)))
    return any(finding.code == "XLA109" for finding in check_file(path, Config()))


@pytest.mark.parametrize(
    ("part", "is_reported"),
    [
        ("self.captions[self.names[i]]", False),
        ("self.lines[i].strip()", False),
        ("self.lines[i]", False),
        ("self.filled[self.names[i]]", False),
        ("self.mixed[self.names[i]]", True),
        ('f"image {i}"', False),
        ("self.boxes[i]", True),
        ("torch.ones(i, 4)", True),
    ],
)
@pytest.mark.parametrize("collate", [PLAIN, UNPACKED, ZIPPED])
def test_a_part_by_its_position(tmp_path: Path, part: str, is_reported: bool, collate: str) -> None:
    assert reported(tmp_path, f"torch.ones(3), {part}", collate) is is_reported


@pytest.mark.parametrize(("part", "is_reported"), [("str(i)", False), ("self.boxes[i]", True)])
def test_a_part_by_its_key(tmp_path: Path, part: str, is_reported: bool) -> None:
    sample = '{"a": torch.ones(3), "b": PART}'.replace("PART", part)
    assert reported(tmp_path, sample, KEYED) is is_reported


STEP = """
import torch


def train(model, loader, optimizer):
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch["x"].cuda(), WEIGHT)
        if "rest" in batch and batch["rest"] > 0:
            loss = loss[:-1]
        loss.mean().backward()
        optimizer.step()


train(torch.nn.Linear(2, 2).cuda(), [], None)
"""


@pytest.mark.parametrize(
    ("weight", "count"),
    [('batch["y"].cuda()', 0), ('batch["rest"].cuda()', 1), ("weigh(batch)", 1)],
)
def test_an_entry_of_a_batch_that_nothing_moves_is_read_on_the_host(
    weight: str, count: int, tmp_path: Path
) -> None:
    source = parse(STEP.replace("WEIGHT", weight).encode(), Path("train.py"))
    done = rewrite_source(source)
    assert [note.rule for note in done.findings] == ["step"] * count
    (tmp_path / "train.py").write_bytes(done.data)
    checked = check_file(tmp_path / "train.py", Config())
    assert [finding.code for finding in checked].count("XLA110") == count
