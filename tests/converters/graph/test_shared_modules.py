"""Modules under several names, called through a Sequential and by themselves, with computed weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from converters.graph import Port, port
from tests.converters.graph.flax_side import variables

Norm = Callable[[nn.Module], nn.Module]


def plain(layer: nn.Module) -> nn.Module:
    return layer


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        made: nn.Module = weight_norm(layer)
    return made


class Cut(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, : -self.count].contiguous()


class Temporal(nn.Module):
    """Each layer as an attribute and in the Sequential that calls it."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.cut1 = norm(nn.Conv1d(5, 8, 3, padding=4, dilation=2)), Cut(4)
        self.conv2, self.cut2 = norm(nn.Conv1d(8, 8, 3, padding=4, dilation=2)), Cut(4)
        self.net = nn.Sequential(self.conv1, self.cut1, nn.ReLU(), self.conv2, self.cut2)
        self.down = nn.Conv1d(5, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.net(x) + self.down(x))


class Several(nn.Module):
    """One layer under four names, called by each."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.first = norm(nn.Linear(6, 6))
        self.again = self.first
        self.listed = nn.ModuleList([self.first, nn.Linear(6, 6)])
        self.net = nn.Sequential(self.first, nn.ReLU(), self.listed[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.net(x)
        for layer in self.listed:
            x = torch.tanh(layer(x))
        return self.again(x) + self.first(x * 2)


NORMS: dict[str, Norm] = {
    "plain": plain,
    "weight_norm, old": old_weight_norm,
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm, old": spectral_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


def ported(
    make: Callable[[Norm], nn.Module], norm: str, *shape: int
) -> tuple[nn.Module, torch.Tensor, Port]:
    torch.manual_seed(0)
    model, x = make(NORMS[norm]).eval(), torch.randn(shape)
    return model, x, port(model, {"x": x})


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("make", "shape"), [(Temporal, (2, 5, 9)), (Several, (3, 6))])
@pytest.mark.long_cases(
    "Temporal-shape0-spectral_norm, old",
    "Temporal-shape0-weight_norm, old",
    "Several-shape1-orthogonal",
    "Temporal-shape0-orthogonal",
)
def test_it_computes_what_torch_does(
    make: Callable[[Norm], nn.Module],
    shape: tuple[int, ...],
    norm: str,
    load: Callable[[Port], Any],
) -> None:
    model, x, made = ported(make, norm, *shape)
    with torch.no_grad():
        wanted = model(x).numpy()
    given = variables(model, made, {"x": x})
    with jax.default_matmul_precision("highest"):
        found = np.asarray(load(made).apply(given, jnp.asarray(x.numpy())))
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 2e-6


@pytest.mark.parametrize("norm", ["plain", "weight_norm, old", "weight_norm"])
def test_each_call_is_one_of_the_layer(norm: str) -> None:
    *_, made = ported(Temporal, norm, 2, 5, 9)
    forward = made.modeling[made.modeling.rindex("def __call__") :]
    assert re.findall(r"self\.(conv\d|down)\(", forward) == ["conv2", "conv1", "down"]
    assert "conv_general_dilated" not in forward
