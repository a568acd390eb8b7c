"""Values that a port has as constants, watched after the first update."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from migrate.train.frames import Frame
from migrate.train.slice.loss import loss_slice
from migrate.train.slice.reads import read_names
from migrate.train.slice.text import ScriptText
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
