"""Reads in objects whose class is chosen by name from a registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from migrate.syntax.source import parse

MATCHER = """
import torch
from registry import register


@register()
class HungarianMatcher(torch.nn.Module):
    @torch.no_grad()
    def forward(self, outputs, targets, epoch=0):
        return (outputs - targets).abs().cpu()
"""
CRITERION = """
import torch
from registry import register


@register()
class Criterion(torch.nn.Module):
    def __init__(self, matcher, weight):
        super().__init__()
        self.matcher = matcher

    def forward(self, outputs, targets, epoch):
        {call}
        return (outputs - targets).mean()
"""
TRAIN = """
def train(model, criterion, loader, optimizer):
    for x, y in loader:
        loss = criterion(model(x.cuda()), y.cuda(), 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def reported(text: str) -> list[int]:
    findings = check_source(parse(text.encode(), Path("script.py")), Config(select=("XLA203",)))
    return [finding.line for finding in findings]


@pytest.mark.parametrize(
    "call",
    [
        "self.matcher(outputs, targets, epoch=epoch)",
        "found = self.matcher(outputs, targets)",
        "self.matcher.forward(outputs, targets)",
    ],
)
def test_a_step_is_followed_into_a_class_made_by_name(call: str) -> None:
    assert reported(MATCHER + CRITERION.format(call=call) + TRAIN) == [10]


@pytest.mark.parametrize(
    "call",
    [
        "self.loss(outputs, targets)",  # named otherwise
        "self.matcher(outputs)",  # takes other arguments
        "self.matcher(outputs, targets, eps=1)",
        "pass",
    ],
)
def test_a_step_is_not_followed_into_any_other(call: str) -> None:
    assert reported(MATCHER + CRITERION.format(call=call) + TRAIN) == []


def test_a_class_that_no_registry_knows_is_none() -> None:
    text = MATCHER.replace("@register()\n", "")
    call = CRITERION.format(call="self.matcher(outputs, targets)")
    assert reported(text + call + TRAIN) == []


def test_a_step_is_followed_into_a_class_of_another_file(tmp_path: Path) -> None:
    files = {
        "registry.py": "def register():\n    return lambda cls: cls\n",
        "matcher.py": MATCHER,
        "criterion.py": CRITERION.format(call="self.matcher(outputs, targets, epoch=epoch)"),
        "train.py": TRAIN,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    findings = check_paths([tmp_path], Config(select=("XLA203",))).findings
    assert [(f.path.name, f.line) for f in findings] == [("matcher.py", 10)]


ROOM = """
import torch


class Room:
    def __init__(self, net):
        self.net = net.cuda()

    def store(self, path):
        torch.save(self.net.state_dict(), path)
"""
CHOSEN = """
import importlib

import torch.distributed as dist


class Shelf(list):
    def store(self, path):
        print(path, len(self))


def run(name, net, kind="Room"):
    dist.init_process_group("nccl")
    room = MADE(net)
    if dist.get_rank() == 0:
        room.store("room.pt")
"""


@pytest.mark.parametrize(
    ("made", "count"),
    [
        ('importlib.import_module(f"rooms.{name}").Room', 1),
        ('importlib.import_module(f"rooms.{name}.inner").Room', 1),
        ('importlib.import_module("rooms." + name).Room', 1),
        ('importlib.import_module("rooms.%s" % name).Room', 1),
        ('importlib.import_module("rooms.{}".format(name)).Room', 1),
        ('importlib.import_module("rooms.large").Room', 1),
        ('getattr(importlib.import_module(f"rooms.{name}"), kind)', 1),
        ("Shelf", 0),
    ],
)
def test_a_save_of_a_class_that_is_chosen_by_name(tmp_path: Path, made: str, count: int) -> None:
    (tmp_path / "rooms" / "small").mkdir(parents=True)
    for file in ("rooms/__init__", "rooms/small/__init__"):
        (tmp_path / f"{file}.py").write_text("")
    for file in ("rooms/large", "rooms/small/inner"):
        (tmp_path / f"{file}.py").write_text(ROOM)
    (tmp_path / "train.py").write_text(CHOSEN.replace("MADE", made))
    done = rewrite_folder(tmp_path, options=RewriteOptions(), processes=1)
    notes = [note for file in done.files if file.name.stem == "train" for note in file.findings]
    assert [note.line for note in notes if note.rule == "save"] == [16] * count
