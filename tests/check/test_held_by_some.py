"""XLA305: reads below a test of an object that only some replicas have, wherever it is made."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

TRACKERS = """
import torch.distributed as dist


class Tracker:
    def log(self, values):
        print(values)


def by_name():
    tracker = None
    if dist.get_rank() == 0:
        tracker = Tracker()
    return tracker


def by_return():
    if dist.get_rank() != 0:
        return None
    return Tracker()


def by_end():
    me = dist.get_rank()
    chief = me == 0
    if chief:
        return Tracker()


def by_choice():
    return None if dist.get_rank() else Tracker()


def by_comparison():
    return Tracker() if dist.get_rank() == 0 else None


def of_others(name):
    tracker = by_name()
    return tracker


def pair():
    return by_return(), 3


class Setup:
    def __init__(self):
        self.tracker = None
        if dist.get_rank() == 0:
            self.tracker = Tracker()


def everywhere(name=None):
    if name is None:
        return None
    return Tracker()


def one_of_two():
    if dist.get_rank() == 0:
        return Tracker()
    return Tracker()


def other_on_others():
    tracker = None
    if dist.get_rank() == 0:
        tracker = Tracker()
    else:
        tracker = Tracker()
    return tracker


def whether_distributed(rank):
    return Tracker() if rank == -1 else None
"""
LOSSES = """
import torch
import torch.nn.functional as F


def loss_of(out, y, tracker=None):
    acc = (out.argmax(1) == y).float().mean()
    TEST
    return F.cross_entropy(out, y)
"""
TRAINING = """
import torch
import torch.distributed as dist
import trackers
from losses import loss_of
from trackers import Setup


def main(loader):
    dist.init_process_group("nccl")
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    MADE
    for x, y in loader:
        loss = loss_of(model(x.cuda()), y.cuda(), tracker)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main([])
"""
PLAIN = "if tracker is not None:\n        tracker.log(acc.item())"


def reports(folder: Path, made: str, test: str = PLAIN) -> bool:
    (folder / "trackers.py").write_text(textwrap.dedent(TRACKERS))
    (folder / "losses.py").write_text(LOSSES.replace("TEST", test))
    (folder / "train.py").write_text(TRAINING.replace("MADE", made))
    found = check_paths([folder], Config(select=("XLA305",))).findings
    return bool(found)


@pytest.mark.parametrize(
    "made",
    [
        "tracker = trackers.by_name()",
        "tracker = trackers.by_return()",
        "tracker = trackers.by_end()",
        "tracker = trackers.by_choice()",
        "tracker = trackers.by_comparison()",
        "tracker = trackers.of_others('run')",
        "tracker, count = trackers.pair()",
        "tracker = Setup().tracker",
    ],
)
def test_an_object_that_some_replicas_have_is_followed(tmp_path: Path, made: str) -> None:
    assert reports(tmp_path, made)


@pytest.mark.parametrize(
    "test",
    [
        "if tracker:\n        tracker.log(acc.item())",
        "if tracker is None:\n        return F.cross_entropy(out, y)\n    tracker.log(acc.item())",
        "if tracker is None:\n        pass\n    else:\n        tracker.log(acc.item())",
        "tracker is not None and tracker.log(acc.item())",
        "acc = acc.item() if tracker else 0.0",
    ],
)
def test_each_way_to_ask_for_it_counts(tmp_path: Path, test: str) -> None:
    assert reports(tmp_path, "tracker = trackers.by_name()", test)


@pytest.mark.parametrize(
    "made",
    [
        "tracker = trackers.everywhere()",
        "tracker = trackers.one_of_two()",
        "tracker = trackers.other_on_others()",
        "tracker = trackers.whether_distributed(-1)",
    ],
)
def test_what_all_replicas_have_is_no_test_of_the_rank(tmp_path: Path, made: str) -> None:
    assert not reports(tmp_path, made)
