"""The gate before a port."""

from __future__ import annotations

import copy
import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from migrate.train.noise import StatementNoise, torch_noise
from migrate.train.watch.gate import Gate, Refusal, _expressions, unlike_modes
from migrate.train.watch.step import Bound, bind, build, children
from migrate.train.watch.values import Held


class Step(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), nn.Linear(2, 1))
        self.scale = scale

    def forward(self) -> torch.Tensor:
        return self.model(torch.ones(2)).sum() * self.scale


@pytest.mark.parametrize("nan", ["gradient", "loss"])
def test_a_slice_that_gives_nan_is_not_the_scripts(nan: str) -> None:
    step = Step(1.0).eval()
    loss = step()
    loss.backward()
    gate: Any = Gate.__new__(Gate)
    gate.step, gate._bound, gate._noise = step, Bound({}, {}, {}, {}), nullcontext
    gate._require_equal(loss, {})
    if nan == "loss":
        loss = loss * float("nan")
    else:
        step.model[0][0].weight.grad[0, 0] = float("nan")
    with pytest.raises(Refusal, match="run again, give"):
        gate._require_equal(loss, {})


def test_a_state_that_a_step_hands_to_the_next_one_is_refused() -> None:
    gate: Any = Gate.__new__(Gate)
    gate._question, gate._namespace = {"free": ["state"], "text": ""}, {}
    values = {"state": {"carry": torch.ones(2)}}  # before the statements it was None
    with pytest.raises(Refusal, match="state gets tensors in the statements that compute the loss"):
        gate.open(torch.ones(()), lambda: None, values, {}, [])


def noise_of(function: Any, text: str) -> StatementNoise:
    """The numbers of the comparison in the lines of a function that have a text."""
    source, first = inspect.getsourcelines(function)
    lines = [(n, n) for n, line in enumerate(source, first) if text in line]
    return StatementNoise(__file__, {"slice": [function.__name__, first], "lines": lines})


def test_a_loss_draws_the_same_numbers_when_it_runs_again() -> None:
    torch.manual_seed(0)
    step = Step(1.0)  # torch's own dropout draws here
    noise = noise_of(test_a_loss_draws_the_same_numbers_when_it_runs_again, "loss = step()")
    gate: Any = Gate.__new__(Gate)
    gate.step, gate._bound, gate._noise = step, Bound({}, {}, {}, {}), torch_noise
    losses: list[float] = []
    others: list[list[float]] = []
    for _ in range(2):
        step.zero_grad()
        noise.begin()
        loss = step()
        others.append(torch.rand(3).tolist())  # a statement beside the loss: torch's own numbers
        noise.end()
        noise.decide()
        loss.backward()
        losses.append(loss.item())
        gate._require_equal(loss, {})
    assert noise.is_drawn
    assert gate.is_drawn
    assert losses[0] == losses[1]
    assert others[0] != others[1]


def test_a_loss_without_random_numbers_is_left_alone() -> None:
    step = Step(1.0).eval()
    noise = noise_of(test_a_loss_without_random_numbers_is_left_alone, "")
    noise.begin()
    step()
    noise.end()
    noise.decide()
    assert noise.is_drawn is False
    noise.begin()
    assert torch.rand(8).tolist() != torch.rand(8).tolist()
    noise.begin()
    with torch_noise():
        drawn = torch.rand(8).tolist()
    assert torch.rand(8).tolist() != drawn


def test_a_mode_inside_of_a_model_is_seen() -> None:
    step = Step(1.0).train()
    assert unlike_modes(step) == ()
    step.model[0].eval()
    assert unlike_modes(step) == ("model.0", "model.0.0", "model.0.1")
    assert not step.model[0].training
    assert step.model.training


def test_a_number_beside_the_tensors_of_a_batch_may_change_only_if_no_loss_reads_it(
    tmp_path: Path,
) -> None:
    def batch(**others: Any) -> dict[str, Any]:
        return {"batch": {"x": torch.ones(2, 3), "start": 1, "name": "a", **others}}

    model = nn.Linear(3, 4)
    bound = bind(["batch", "model"], {**batch(), "model": model})
    text = "values = model(batch['x'])[:, batch['start']:]"
    frame: Any = inspect.currentframe()
    gate: Any = Gate({"line": 5, "optimizer": -1}, tmp_path, frame, lambda module: {})
    gate._bound, gate.inputs, gate.data = bound, dict(bound.inputs), list(bound.data)
    gate.step = build(bound, text, "values.sum()", {}, {"model": model}, tmp_path / "step.py")
    gate.require_settings(batch(name="b"))
    gate.require_settings(batch())
    with pytest.raises(Refusal, match=r"batch\['start'\] is 1 in the first batch and 2 in a later"):
        gate.require_settings(batch(start=2))
    # Of a policy that is its reference, the loss is 0 with each: the gradient tells.
    result = "(values - values.detach()).sum()"
    gate.step = build(bound, text, result, {}, {"model": model}, tmp_path / "step.py")
    with pytest.raises(Refusal, match="the loss computes otherwise"):
        gate.require_settings(batch(start=2))


@pytest.mark.parametrize("named", ["model", "raw_model"])
def test_a_module_with_two_names_is_one_child(named: str) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.raw_model = self.model = nn.Linear(2, 1)

    trainer = Trainer()
    bound = Bound({}, {}, {"self": trainer}, {})
    assert children(bound, [trainer.model], f"loss = self.{named}(x)") == {named: trainer.model}


def test_a_module_of_which_a_method_is_called_is_a_child() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "nn": nn}
    exec("class Engine:\n    pass", namespace)
    trainer = namespace["Engine"]()
    trainer.engine = namespace["Engine"]()
    trainer.engine.critic, trainer.engine.actor = (
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2)
    )
    bound = Bound({}, {}, {"self": trainer}, {})
    called = list(trainer.engine.critic)  # a method of the critic calls them
    assert children(bound, called) == {"critic": trainer.engine.critic}
    expressions = dict(_expressions({"trainer": trainer}))
    assert expressions[id(trainer.engine.actor)] == "trainer.engine.actor"
    memo: dict[int, Any] = {}
    twin = copy.deepcopy(Held(trainer), memo).value
    assert twin.engine.critic is memo[id(trainer.engine.critic)]
    assert trainer.engine.critic is not twin.engine.critic


@pytest.mark.parametrize(
    ("layer", "frozen_in_training", "is_refused", "fixed"),
    [
        (nn.Tanh(), False, False, True),  # modes that are not alike
        (nn.Dropout(0.0), True, False, False),  # one mode of the port is enough
        (nn.Tanh(), True, False, True),  # a mode would switch nothing: one recording instead of two
        (nn.Tanh(), True, True, True),  # random numbers in training alone
        (nn.BatchNorm1d(2), False, True, False),  # its statistics are written by mode
    ],
    ids=["unlike", "alike", "no mode", "refused", "statistics"],
)
def test_modules_stay_in_their_own_modes_if_one_mode_of_the_port_cannot_be_theirs(
    layer: nn.Module, frozen_in_training: bool, is_refused: bool, fixed: bool
) -> None:
    gate: Any = Gate.__new__(Gate)
    gate.step = nn.Module()
    gate.step.model = nn.Sequential(nn.Linear(2, 2), layer).train()
    gate.step.frozen = nn.Linear(2, 2).train(frozen_in_training)
    assert gate._can_fix(is_refused=is_refused) == fixed
