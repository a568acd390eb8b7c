"""A weight that the original computes at each call is computed so by its port, and trained through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from converters.graph import Port, port
from tests.converters.graph.flax_side import Inputs, variables


class Scale(nn.Module):
    """A learned scale of each row."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, rows)[:, None])

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.gain


class UnitRows(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(weight, dim=-1)


class Net(nn.Module):
    def __init__(self, change: Callable[[nn.Module], object], *sizes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(*sizes)
        change(self.fc)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.fc(x))


class Table(nn.Module):
    """A parametrized embedding, whose weight an output shares."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        parametrize.register_parametrization(self.table, "weight", Scale(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.arange(x.shape[1]).expand(x.shape)
        return (self.table(tokens) * x[..., None]) @ self.table.weight.T


def _own(*maps: nn.Module) -> Callable[[nn.Module], object]:
    def change(layer: nn.Module) -> None:
        for each in maps:
            parametrize.register_parametrization(layer, "weight", each)

    return change


def _pruned(layer: nn.Module) -> None:
    prune.l1_unstructured(layer, "weight", amount=0.5)


CASES: dict[str, Callable[[], nn.Module]] = {
    "one of one's own": lambda: Net(_own(UnitRows()), 4, 6),
    "two on one weight": lambda: Net(_own(Scale(6), UnitRows()), 4, 6),
    "pruning": lambda: Net(_pruned, 4, 6),
    "orthogonal, square": lambda: Net(parametrizations.orthogonal, 4, 4),
    "orthogonal, reflections": lambda: Net(parametrizations.orthogonal, 4, 6),
    "weight_norm": lambda: Net(parametrizations.weight_norm, 4, 6),
    "an embedding": Table,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long_cases("orthogonal, reflections")
def test_values_and_gradients_are_the_original_s(name: str, load: Callable[[Port], Any]) -> None:
    torch.manual_seed(0)
    model = CASES[name]().eval()
    inputs: Inputs = {"x": torch.randn(3, 4)}
    written = port(model, inputs)
    flax, weights = load(written), variables(model, written, inputs)
    expected = model.double()(inputs["x"].double())
    cotangent = torch.arange(1.0, 1 + expected.numel()).reshape(expected.shape).double()
    (expected * cotangent).sum().backward()
    x = jnp.asarray(inputs["x"].numpy())

    def total(params: object) -> tuple[jax.Array, jax.Array]:
        found = flax.apply({**weights, "params": params}, x=x)
        return (found * jnp.asarray(cotangent.numpy(), jnp.float32)).sum(), found

    with jax.default_matmul_precision("highest"):
        gradients, found = jax.grad(total, has_aux=True)(weights["params"])
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data = parameter.grad  # arranged as Flax has it, like the weights
    wanted = variables(model, written, inputs)["params"]
    check = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    assert jax.tree.structure(gradients) == jax.tree.structure(wanted)
    jax.tree.map(check, gradients, wanted)
