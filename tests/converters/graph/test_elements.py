"""Parts of an array have the names that the original gives them, or stay in its list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from converters.graph import Port, port
from converters.graph.expression import plain_exponents
from tests.converters.graph.flax_side import variables


class Gates(nn.Module):
    """Each part gets its name on a line of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 18)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.up(x).chunk(3, dim=-1)
        query = split[0]
        key = split[1]
        value = split[-1]
        score = torch.tanh(query - key) * query
        return score * value + torch.relu(value) * key


class Halves(nn.Module):
    """The parts have no names: they are read from the list, and one is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 18)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = self.up(x).chunk(3, dim=-1)
        return halves[0] * torch.sigmoid(halves[2]) / (halves[2].exp() + 1e-6)


class Twice(nn.Module):
    """The list's name stands for another list later on."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.up(x).chunk(2, dim=-1)
        x = parts[0] * torch.sigmoid(parts[1]) + parts[1]
        parts = self.up(x * 2).chunk(2, dim=-1)
        return parts[1] * torch.tanh(parts[0]) - parts[0] * x


@pytest.fixture
def source(load: Callable[[Port], Any]) -> Callable[[nn.Module], str]:
    """Return the source of a model's port, whose outputs are the model's."""

    def written(model: nn.Module) -> str:
        torch.manual_seed(0)
        inputs = {"x": torch.randn(3, 6)}
        result = port(model.eval(), inputs)
        weights = variables(model, result, inputs)
        outputs = load(result).apply(weights, x=inputs["x"].numpy())
        np.testing.assert_allclose(outputs, model(**inputs).detach(), rtol=1e-5, atol=1e-6)
        return result.modeling

    return written


def test_elements_have_the_names_that_the_original_gives_them(
    source: Callable[[nn.Module], str],
) -> None:
    text = source(Gates())
    assert "query, key, value = jnp.split(self.up(x), 3, axis=-1)" in text
    assert "split_" not in text


def test_elements_without_names_stay_in_their_list(source: Callable[[nn.Module], str]) -> None:
    text = source(Halves())
    assert "halves = jnp.split(self.up(x), 3, axis=-1)" in text
    assert "halves[0] * jax.nn.sigmoid(halves[2])" in text
    assert "halves_" not in text


def test_a_list_whose_name_is_needed_again_keeps_one_name_for_each_part(
    source: Callable[[nn.Module], str],
) -> None:
    text = source(Twice())
    assert "parts_0, parts_1 = jnp.split(" in text


def test_exponents_are_as_one_writes_them(source: Callable[[nn.Module], str]) -> None:
    assert " + 1e-6)" in source(Halves())
    text = "x = 1e-06 + 2.5e-05  # 1e-06\ny = '1e-06' * 3e+05 + 1e-12\n"
    assert plain_exponents(text) == "x = 1e-6 + 2.5e-5  # 1e-06\ny = '1e-06' * 3e+5 + 1e-12\n"
