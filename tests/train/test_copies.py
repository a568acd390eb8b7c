"""Frozen weights that become copies of trained ones between two updates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from migrate.train.watch.copies import CopyWatch, RecordedCopies


def modules() -> Any:
    torch.manual_seed(0)
    step = nn.ModuleDict(
        {
            "policy": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)),
            "reference": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).requires_grad_(False),
        }
    )
    step["reference"].load_state_dict(step["policy"].state_dict())
    return step


def test_a_reference_that_is_refreshed_is_known_by_its_module() -> None:
    step = modules()
    copies = CopyWatch(step)
    for update in (2, 4):
        with torch.no_grad():
            step["policy"][0].weight += 1
        step["reference"].load_state_dict(step["policy"].state_dict())
        assert copies.explain(["reference.0.weight"], update)
    assert copies.recorded is not None
    assert copies.recorded.updates == (2, 4)
    assert copies.recorded.names["reference.1.bias"] == "policy.1.bias"


def test_other_changes_are_no_copies() -> None:
    step = modules()
    copies = CopyWatch(step)
    assert not copies.explain(["policy.0.weight"], 1)  # the trained one itself
    with torch.no_grad():
        step["reference"][0].weight.mul_(0.9).add_(0.1)
    assert not copies.explain(["reference.0.weight"], 1)
    assert copies.recorded is None


def test_a_period_is_known_if_it_was_seen_twice_or_to_the_end() -> None:
    assert RecordedCopies({}, (4, 8)).period(11, ended=False) == 4
    assert RecordedCopies({}, (4,)).period(6, ended=True) == 4
    assert RecordedCopies({}, (4,)).period(6, ended=False) == 0
    assert RecordedCopies({}, (4, 8)).period(14, ended=True) == 0
    assert RecordedCopies({}, (4, 7)).period(8, ended=True) == 0
