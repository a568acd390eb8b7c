"""XLA112 and XLA113: sizes of batches that a `collate_fn`, or a data set, draws on the host."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

LOADING = """
import random

import torch
import torch.nn.functional as F
import torchvision.transforms.functional as TF
from torch.utils.data import DataLoader, Dataset


class Pack:
    def __init__(self, sizes):
        self.sizes = sizes
        self.size = sizes[0]

    def __call__(self, samples):
        images = torch.stack([image for image, _ in samples])
        LINES
        return images, torch.tensor([label for _, label in samples])


class Images(Dataset):
    def __getitem__(self, index):
        image = self.images[index]
        ITEM
        return image


def resized(images, size):
    return F.interpolate(images, size=size)


def train(model, data, optimizer):
    model.cuda()
    for images, labels in DataLoader(data, 4, collate_fn=Pack([16, 32])):
        loss = F.cross_entropy(model(images.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def reported(lines: str, item: str = "pass", style: Style | None = None) -> list[tuple[str, str]]:
    """Return the code and the line of what the check, or the rewrite in `style`, reports."""
    script = LOADING.lstrip().replace("LINES", textwrap.indent(lines, " " * 8).strip())
    script = script.replace("ITEM", textwrap.indent(item, " " * 8).strip())
    source = parse(script.encode(), Path("train.py"))
    if style is None:
        hits = [(hit.code, hit.line) for hit in check_source(source, Config())]
    else:
        done = rewrite_source(source, options=RewriteOptions(style=style))
        hits = [(note.rule, note.line) for note in done.findings]
    text = script.splitlines()
    return [(c, text[at - 1].strip()) for c, at in hits if c in ("XLA112", "XLA113")]


@pytest.mark.parametrize("style", [None, "native", "portable"])
def test_at_the_draw(style: Style | None) -> None:
    lines = "side = random.choice(self.sizes)\nimages = F.interpolate(images, size=side)"
    assert reported(lines, style=style) == [("XLA112", "side = random.choice(self.sizes)")]


@pytest.mark.parametrize(
    "lines",
    [
        "s = random.randint(8, 16) * 2; images = F.interpolate(images, size=(s, s), mode='nearest')",
        "s = (random.choice(self.sizes),) * 2; images = F.interpolate(images, s)",
        "self.size = random.choice(self.sizes); images = F.interpolate(images, self.size)",
        "images = resized(images, random.choice(self.sizes))",
        "images = torch.stack([TF.resize(x, [random.choice(self.sizes)] * 2) for x in images])",
        "images = images[:, :, : random.randint(8, 16)]",
        "images = F.interpolate(images, size=(s := random.choice(self.sizes))); self.size = s",
        "images = F.interpolate(images, scale_factor=random.uniform(0.5, 1.5))",
    ],
)
def test_a_size_that_a_collate_function_draws(lines: str) -> None:
    assert [code for code, _ in reported(lines)] == ["XLA112"]


def test_a_branch_that_decides_the_size() -> None:
    lines = "if random.random() < 0.5:\n    images = F.interpolate(images, size=24)"
    assert reported(lines) == [("XLA113", "if random.random() < 0.5:")]
    lines = (
        "side = 16\nif random.random() < 0.5:\n    side = 32\nimages = F.interpolate(images, side)"
    )
    assert reported(lines) == [("XLA113", "if random.random() < 0.5:")]


def test_a_data_set() -> None:
    draw = "side = random.choice([16, 32])"
    assert reported("pass", f"{draw}\nimage = TF.resize(image, side)") == [("XLA112", draw)]


@pytest.mark.parametrize(
    "lines",
    [
        "images = F.interpolate(images, size=self.size)",
        "images = F.interpolate(images, size=random.choice(self.sizes))\nimages = F.interpolate(images, 32)",
        "images = F.interpolate(F.interpolate(images, size=random.choice(self.sizes)), size=32)",
        "s = random.choice(self.sizes); images[:, :, :s] = F.interpolate(images, (s, 32))",
        "i = random.randint(0, 8); images = images[:, :, i : i + 8]",
        "images = images.flip(-1) if random.random() < 0.5 else images",
        "if random.random() < 0.5:\n    images = images.flip(-1)\nimages = F.interpolate(images, 32)",
        "small = resized(images, random.choice(self.sizes))\nimages = F.interpolate(small, size=32)",
        "s = ()\nfor x in (8, 8):\n    s = s + (x,)\nimages = F.interpolate(images, size=s)",
    ],
)
def test_batches_of_one_size(lines: str) -> None:
    assert reported(lines) == []


def test_a_data_set_that_crops() -> None:
    lines = "image = TF.resize(image, random.choice([40, 50]))\nimage = TF.center_crop(image, 32)"
    assert reported("pass", lines) == []
    lines = "image = TF.resize(image, random.choice([40, 50]))\nimage = self.transform(image)"
    assert reported("pass", lines) == []


ONCE = """
import random

import torch.distributed as dist
from torch.utils.data import Dataset


class Windows(Dataset):
    def __init__(self, waves):
        self.waves = waves
        self.sizes = self.drawn()
        self.start = random.randint(0, 4)

    def drawn(self):
        sizes = []
        for _ in range(2):
            sizes.append((random.randint(8, 16), random.randint(8, 16)))
        return sizes

    def __getitem__(self, index):
        wide, high = self.sizes[0]
        at = self.start
        return self.waves[index][CUT]


def train(rank, files):
    dist.init_process_group("nccl")
    SEED
    return Windows(files)
"""


@pytest.mark.parametrize(
    ("cut", "seed", "is_reported"),
    [
        (":, : wide, : high", "pass", True),
        (":, at : at + wide", "pass", True),
        (":, at : at + 8", "pass", False),
        (":, : wide", "random.seed(rank)", True),
        (":, : wide", "random.seed(3)", False),
    ],
)
def test_sizes_that_each_replica_draws_once(cut: str, seed: str, is_reported: bool) -> None:
    script = ONCE.lstrip().replace("CUT", cut).replace("SEED", seed)
    hits = check_source(parse(script.encode(), Path("train.py")), Config())
    assert [hit.line for hit in hits if hit.code == "XLA112"] == [20] * is_reported
