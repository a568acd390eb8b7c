"""A function with a gradient of its own is named: the recording has its forward pass alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from converters.graph import port
from converters.graph.recording.own_gradients import own_gradients_noted


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Round.apply(self.fc(x))


def test_it_is_named_with_its_line() -> None:
    made = port(Rounded(), {"x": torch.randn(2, 4)})
    (name,) = made.own_gradients
    assert name == f"Round (test_own_gradients.py:{Round.forward.__code__.co_firstlineno - 1})"
    assert any(note.startswith(f"{name} has a gradient of its own") for note in made.notes)


def test_a_model_without_one_has_none() -> None:
    assert port(nn.Linear(4, 3), {"input": torch.randn(2, 4)}).own_gradients == ()


def test_torch_s_function_is_put_back() -> None:
    before = torch.autograd.Function.__dict__["apply"]
    found: dict[str, None] = {}
    with own_gradients_noted(found):
        Round.apply(torch.ones(2))
    assert torch.autograd.Function.__dict__["apply"] is before
    assert list(found) == [
        f"Round (test_own_gradients.py:{Round.forward.__code__.co_firstlineno - 1})"
    ]
