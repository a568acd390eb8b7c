"""Frozen weights that become copies of trained ones between two updates."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from migrate.train.watch.copies import CopyWatch, RecordedCopies
from migrate.train.write.texts import train_text
from tests.train.toy import FACTS


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


def values_of(step: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in step.named_parameters()}


def test_a_reference_that_is_refreshed_is_known_by_its_module() -> None:
    step = modules()
    copies, before = CopyWatch(step), values_of(step)
    for update in (2, 4):
        with torch.no_grad():
            step["policy"][0].weight += 1
        step["reference"].load_state_dict(step["policy"].state_dict())
        assert copies.explain(["reference.0.weight"], update, before)
    assert copies.recorded is not None
    assert copies.recorded.updates == (2, 4)
    assert copies.recorded.names["reference.1.bias"] == "policy.1.bias"


def test_other_changes_are_no_copies() -> None:
    step = modules()
    copies, before = CopyWatch(step), values_of(step)
    assert not copies.explain(["policy.0.weight"], 1, before)  # the trained one itself
    with torch.no_grad():
        step["reference"][0].weight.mul_(0.9).add_(0.1)
    assert not copies.explain(["reference.0.weight"], 1, before)
    assert copies.recorded is None


@pytest.mark.parametrize(
    ("ways", "kept"), [((0.3, 0.3), 0.7), ((0.005, 0.005), 0.995), ((0.3, 0.5), None)]
)
def test_a_target_that_moves_towards_the_trained_weights(
    ways: tuple[float, ...], kept: float | None
) -> None:
    step = modules()
    copies = CopyWatch(step)
    for update, way in enumerate(ways, 1):
        with torch.no_grad():
            for weight in step["policy"].parameters():
                weight += torch.randn(weight.shape)
            before = values_of(step)
            for old, new in zip(
                step["reference"].parameters(), step["policy"].parameters(), strict=True
            ):
                old.mul_(1 - way).add_(new, alpha=way)
        assert copies.explain(["reference.0.weight"], update, before)
    assert copies.recorded is not None
    assert copies.recorded.kept == kept


def test_parts_that_move_unlike_are_no_copies() -> None:
    step = modules()
    copies = CopyWatch(step)
    with torch.no_grad():
        step["policy"][0].weight += 1
        step["policy"][1].weight += 1
        before = values_of(step)
        step["reference"][0].weight.lerp_(step["policy"][0].weight, 0.3)
        step["reference"][1].weight.lerp_(step["policy"][1].weight, 0.6)
    assert not copies.explain(["reference.0.weight", "reference.1.weight"], 1, before)


def test_a_period_is_known_if_it_was_seen_twice_or_to_the_end() -> None:
    assert RecordedCopies({}, (4, 8)).period(11, ended=False) == 4
    assert RecordedCopies({}, (4,)).period(6, ended=True) == 4
    assert RecordedCopies({}, (4,)).period(6, ended=False) == 0
    assert RecordedCopies({}, (4, 8)).period(14, ended=True) == 0
    assert RecordedCopies({}, (4, 7)).period(8, ended=True) == 0


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize(("kept", "value"), [(0.0, "jnp.copy"), (0.75, "0.75 * x + 0.25 *")])
def test_a_program_with_copies_is_python(kept: float, value: str, statistics: bool) -> None:
    facts = replace(FACTS, copied={"a": "b"}, copies_every=4, copies_keep=kept)
    text = train_text(replace(facts, statistics=statistics))
    assert f"return {value}" in text
    names = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
    assert "more" in names
