"""Transforms that derive from those of a library draw on the host where the loader calls them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.syntax.source import parse

SCRIPT = """
    import random

    import torch
    import torchvision
    from torchvision.transforms import v2
    from torch.utils.data import Dataset


    class Jitter(BASE):
        def __init__(self, chance, **kwargs):
            super().__init__(**kwargs)
            self.chance = chance

        def METHOD(self, first, second):
            first = self.change(first)
            if torch.rand(1) < self.chance:
                second = self.change(second)
            return first, second


    class Pairs(Dataset):
        def __init__(self, paths):
            self.paths, self.transforms = paths, [Jitter(0.5)]

        def __getitem__(self, index):
            first, second = self.paths[index]
            for transform in self.transforms:
                first, second = transform(first, second)
            return first, second


    def train(model, loader, optimizer):
        jitter = Jitter(0.5)
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            CALL
            loss = model(x, y)
            loss.backward()
            optimizer.step()
"""
BASES = (
    "torchvision.transforms.ColorJitter",
    "torchvision.transforms.RandomCrop",
    "v2.RandomErasing",
)


def codes(base: str, call: str, method: str = "forward") -> list[str]:
    """Return the codes that are reported of a transform with a base, and of a call in the step."""
    text = SCRIPT.replace("BASE", base).replace("CALL", call).replace("METHOD", method)
    source = parse(textwrap.dedent(text).encode(), Path("script.py"))
    return [finding.code for finding in check_source(source, Config())]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("method", ["forward", "__call__"])
def test_transform_of_the_loader_is_not_reported(base: str, method: str) -> None:
    assert "XLA113" not in codes(base, "pass", method)


@pytest.mark.parametrize("base", BASES)
def test_transform_that_the_step_calls_is_reported(base: str) -> None:
    assert "XLA113" in codes(base, "x, y = jitter(x, y)")
