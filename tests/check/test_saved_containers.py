"""Dicts, lists and tuples of a class of their own in what xm.save writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
import collections
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any, Dict, NamedTuple
import torch
from yacs.config import CfgNode as CN

Size = namedtuple("Size", "width height")
_C = CN()


class Config(dict):
    __getattr__ = dict.__getitem__


class Small(Config):
    pass


class Typed(Dict[str, Any]):
    pass


class Ordered(OrderedDict):
    pass


class Steps(list):
    pass


class Shape(NamedTuple):
    width: int


class Plain:
    def __init__(self, depth):
        self.depth = depth


def make():
    config = Config(depth=2)
    return config


def save(model, config, path="model.pt"):
    torch.save({{"model": model.state_dict(), "config": config}}, path)


class Trainer:
    def __init__(self):
        self.config = Small(depth=2)
        self.plain = dict(depth=2)

    def train(self, model):
        {}


model = torch.nn.Linear(2, 2).cuda()
Trainer().train(model)
"""
LOST = [
    'torch.save({"config": Config(depth=2)}, "a.pt")',
    'torch.save(dict(model=model.state_dict(), config=self.config), "a.pt")',
    'config = make(); torch.save([config], "a.pt")',
    'state = {}; state["config"] = Ordered(depth=2); torch.save(state, "a.pt")',
    'torch.save({"config": Typed(depth=2)}, "a.pt")',
    'torch.save({"count": defaultdict(int)}, "a.pt")',
    'torch.save({"count": collections.Counter("ab")}, "a.pt")',
    'torch.save({"cfg": _C.clone()}, "a.pt")',
    'torch.save({"steps": Steps([1])}, "a.pt")',
    'torch.save({"size": Size(1, 2)}, "a.pt")',
    'torch.save({"shape": Shape(1)}, "a.pt")',
    "save(model, Config(depth=2))",
]
KEPT = [
    'torch.save({"config": dict(self.config)}, "a.pt")',
    'torch.save({"config": self.plain, "depth": self.config.depth}, "a.pt")',
    'torch.save({"config": self.config["depth"]}, "a.pt")',
    'torch.save(OrderedDict(model=model.state_dict()), "a.pt")',
    'torch.save({"config": Plain(2), "size": (1, 2)}, "a.pt")',
    'torch.save({"size": Size(1, 2)._asdict()}, "a.pt")',
    "save(model, dict(depth=2))",
]


def notes(saves: str, style: Style) -> list[str]:
    source = parse(SCRIPT.format(saves).encode(), Path("train.py"))
    done = rewrite_source(source, options=RewriteOptions(style=style))
    return [note.message for note in done.findings if note.rule == "XLA831"]


@pytest.mark.parametrize("saves", LOST)
def test_the_class_is_lost(saves: str) -> None:
    (message,) = notes(saves, "native")
    assert "of its own class" in message


@pytest.mark.parametrize("saves", KEPT)
def test_what_comes_back_as_it_was(saves: str) -> None:
    assert notes(saves, "native") == []


def test_the_portable_save_is_no_copy() -> None:
    assert notes(LOST[0], "portable") == []
