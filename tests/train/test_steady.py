"""Values that a port has as constants, watched after the first update."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from migrate.train.frames import Frame
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.reads import read_names
from migrate.train.slice.text import ScriptText
from migrate.train.watch.recorder import watched_enough
from migrate.train.watch.steady import Steady


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))


@pytest.mark.parametrize(
    ("change", "described"),
    [
        (lambda s, t, g: None, ""),
        (lambda s, t, g: s.model.eval(), "training of model is True in the first step"),
        (lambda s, t, g: s.model[0].requires_grad_(False), "requires_grad of model.0.weight is"),
        (lambda s, t, g: setattr(s.model[1], "p", 0.5), "model.1.p is 0.1 in the first step"),
        (lambda s, t, g: setattr(t, "t", 0.5), "trainer.t is 1.0 in the first step"),
        (lambda s, t, g: setattr(t, "count", 1), ""),
        (lambda s, t, g: g.update(beta=0.5), "beta is 0.1 in the first step"),
        (lambda s, t, g: g.update(epoch=1), ""),
    ],
)
def test_a_change_of_what_the_loss_reads_is_described(
    change: Callable[[Any, Any, Any], None], described: str
) -> None:
    step, trainer = Step(), SimpleNamespace(t=1.0, count=0)
    variables = {"beta": 0.1, "epoch": 0}
    steady = Steady(step, {"trainer": trainer}, variables, ["t"], ["beta"])
    change(step, trainer, variables)
    assert steady.change(variables).startswith(described)
    assert bool(steady.change(variables)) == bool(described)


def test_names_are_read_in_functions_that_the_loss_calls() -> None:
    script = ScriptText(
        "train.py",
        textwrap.dedent(
            """
            class Trainer:
                def loss(self, x):
                    return scaled(self.model(x)) / self.t

                def log(self):
                    return self.count

            def scaled(x):
                return x * beta

            for x in loader:
                loss = trainer.loss(x)
                loss.backward()
            """
        ),
    )
    attributes, variables = read_names(script, loss_slice(script, Frame(14, "<module>", 1)))
    assert "t" in attributes
    assert "count" not in attributes
    assert "beta" in variables
    assert "x" not in variables


def test_a_call_with_the_training_loop_is_no_part_of_the_loss() -> None:
    source = """
    class Run:
        def part(self, x):
            loss = self.model(x).mean()
            loss.backward()

        def __call__(self):
            for x in self.loader:
                self.part(x)
                self.count += 1
                if self.count % 5 == 0:
                    print(self.count)

    Run()()
    """
    script = ScriptText("train.py", textwrap.dedent(source))
    running = [Frame(5, "part", 3), Frame(9, "__call__", 7), Frame(14, "<module>", 1)]
    attributes, _ = read_names(script, loss_slice(script, running[0]), running)
    assert {"model"} == {"model", "loader", "count"} & set(attributes)


@pytest.mark.parametrize(
    ("first", "later", "described"),
    [
        (0.1, None, "beta is 0.1 in the first step and None in a later one"),
        (None, 0.1, "beta is None in the first step and 0.1 in a later one"),
        (np.float32(1), np.float32(2), "beta is"),
        ([0.1, 0.2], [0.1, 0.3], "beta changes"),
        ({"a": (1, {2})}, {"a": (1, {3})}, "beta changes"),
        (1, [1], "beta changes"),
        (np.ones(2), np.zeros(2), "beta changes"),
        (max, nn.Linear, "beta changes"),
        ([1, {"a": torch.ones(2)}], [1, {"a": torch.ones(2)}], ""),
    ],
)
def test_a_constant_of_any_kind_is_watched(first: Any, later: Any, described: str) -> None:
    for constants, names in (({"beta": first}, []), ({}, ["beta"])):
        variables = {"beta": first}
        steady = Steady(Step(), {}, variables, [], names, constants)
        assert steady.change(variables, constants) == ""
        change = steady.change({"beta": later}, {"beta": later} if constants else {})
        assert change.startswith(described)
        assert bool(change) == bool(described)


def test_containers_that_are_changed_in_place_are_seen() -> None:
    held: dict[str, Any] = {"empty": {}, "inner": [[{1}]]}
    for name, change in (("empty", {"a": 1}), ("inner", None)):
        steady = Steady(Step(), {}, {}, [], [], held)
        if change is None:
            held["inner"][0][0].add(2)
        else:
            held["empty"].update(change)
        assert steady.change({}) == f"{name} changes"


def test_an_attribute_that_comes_later_is_seen() -> None:
    trainer = SimpleNamespace(count=0)
    steady = Steady(Step(), {"trainer": trainer}, {}, ["t"], [])
    trainer.t = 0.5
    assert steady.change({}) == "trainer.t has no value in the first step and one in a later one"


def test_what_is_filled_only_is_not_read() -> None:
    source = """
    def loss_of(self, x):
        self.history.append(1)
        self.log["x"] = seen[0]
        total = self.weights[0]
        notes.append(2)
        return total * x

    for x in loader:
        loss = self.loss_of(x)
        loss.backward()
    """
    script = ScriptText("train.py", textwrap.dedent(source))
    attributes, variables = read_names(script, loss_slice(script, Frame(11, "<module>", 1)))
    assert {"weights"} == {"weights", "history", "log"} & set(attributes)
    assert {"seen"} == {"seen", "notes"} & set(variables)


@pytest.mark.parametrize(
    ("later", "seconds", "enough"),
    [
        (100, 5.0, False),
        (8, 21.0, True),
        (
            7,
            21.0,
            False,
        ),  # a busy machine: as many updates as were recorded show the period of a schedule
        (0, 121.0, True),
        (200, 5.0, True),
    ],
)
def test_a_watch_sees_as_many_updates_as_were_recorded(
    later: int, seconds: float, enough: bool
) -> None:
    assert watched_enough(later, 8, seconds) is enough
