"""Moving averages of the weights: found beside the model, and their rule."""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import io
import sys
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from migrate.train.slice.text import ScriptText
from migrate.train.watch.averages import Averages, RecordedAverage, SeenDecay, decay_text
from migrate.train.write.averages import average_class, average_lines


class Shadow:
    """An average as a dictionary that is filled anew."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module, decay: float) -> None:
        for name, p in model.named_parameters():
            self.shadow[name] = decay * self.shadow[name] + (1 - decay) * p.detach()


def run(
    decay_of: Callable[[int], float], updates: int = 6, resting: int = 0
) -> tuple[RecordedAverage | None, Any, list[str]]:
    """Train for some updates with an average; the first ones leave the weights as they are."""
    torch.manual_seed(0)
    step = nn.Module()
    step.model = model = nn.Linear(4, 3)
    other = copy.deepcopy(model)  # noqa: F841 (it stays as it is, and is no average)
    ema = Shadow(model)
    averages = Averages(step, sys._getframe())
    for number in range(updates):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p) * (number >= resting))
        ema.update(model, decay_of(number))
        averages.observe({name: p.detach() for name, p in step.named_parameters()})
    return averages.recorded(), ema, averages.unknown()


@pytest.mark.parametrize(
    ("decay_of", "text"),
    [
        (lambda n: 0.999, "0.999"),
        (lambda n: 0.95, "0.95"),
        (lambda n: min(0.3, (n + 1) / (n + 10)), "jnp.minimum(0.3, (step + 1) / (step + 10))"),
        (lambda n: (n + 1) / (n + 2), "(step + 1) / (step + 2)"),
    ],
)
def test_an_average_is_found_with_its_rule(decay_of: Callable[[int], float], text: str) -> None:
    found, ema, unknown = run(decay_of)
    assert not unknown
    assert found is not None
    assert found.name == "ema.shadow"
    assert found.decay.startswith(text)
    assert torch.equal(found.last["model.weight"], ema.shadow["weight"])


def test_lines_that_move_an_average_and_do_nothing_else() -> None:
    source = """
settings.number += 1
ema.update(model, settings.decay)
log(ema.update(model, 0.5), writer)
model.train()
"""
    step = nn.Module()
    step.model = model = nn.Linear(4, 3)
    ema, writer = Shadow(model), io.StringIO()
    settings = argparse.Namespace(decay=0.5)
    averages = Averages(step, sys._getframe())
    seen = {"ema": ema, "model": model, "settings": settings, "writer": writer, "log": print}
    weights = {name: p.detach() for name, p in step.named_parameters()}
    for line in (2, 3, 4, 5) * 3:
        averages.before(line, seen)
        if line in (3, 4):
            ema.update(model, 0.5)
        if line == 5:
            averages.observe(weights)
            with torch.no_grad():
                model.weight.add_(1.0)
    average = dataclasses.replace(averages.recorded() or RecordedAverage("", "", {}))
    script = ScriptText("train.py", source)
    assert average.lines.keys() == {3, 4}
    assert average_lines(script, average) == {3}
    assert average_lines(script, None) == set()


def test_a_rule_that_is_unknown_is_no_average() -> None:
    found, _, unknown = run(lambda n: 0.5 + 0.07 * n % 0.3)
    assert found is None
    assert unknown == ["ema.shadow"]


def test_a_rate_of_zero_at_the_start_hides_no_average() -> None:
    found, _, unknown = run(lambda n: 0.95, resting=1)
    assert found is not None
    assert found.decay == "0.95"
    assert found.owner == ("Shadow", {})
    assert not unknown


def test_what_rounding_hides_is_no_rule() -> None:
    assert decay_text([SeenDecay(0.999, 0.7)]) is None
    assert decay_text([]) is None


def test_the_class_of_an_average_moves_states() -> None:
    source = """
class EMA:
    def __init__(self, model, decay=0.5):
        self.decay = decay
        self.shadow = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model):
        for kept, new in zip(self.shadow.parameters(), model.parameters()):
            kept.lerp_(new, 1 - self.decay)
"""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.ClassDef)
    average = RecordedAverage("ema.shadow", "0.5", {}, ("EMA", {"decay": 0.5}))
    checked: list[Any] = []
    program = SimpleNamespace(averaged=lambda kept, new, step: (kept + new) / 2 + step)
    names = {"_train": program, "_require": lambda *args: checked.append(args)}
    exec(average_class(node, average), names)
    State = namedtuple("State", "params")
    ema = names["EMA"](State(4.0))  # type: ignore[operator]
    ema.update(State(2.0))
    ema.update(State(1.0))
    assert ema.shadow.params == 3.0
    assert checked == [("decay", 0.5, 0.5)]
    assert not average_class(node, dataclasses.replace(average, owner=("Other", {"decay": 0.5})))
    assert not average_class(node, dataclasses.replace(average, owner=("EMA", {})))
    assert not average_class(node, None)
