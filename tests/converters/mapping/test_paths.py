"""Paths are those that linen itself gives to a model written with the same attributes."""

from collections import OrderedDict

import flax.linen as linen
import jax
import numpy as np
import torch
from torch import nn

from converters import convert_to_pytree
from converters.checkpoint import flatten


class TorchBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        return self.inner(x)


class TorchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.layer = nn.ModuleList([nn.Linear(5, 5), TorchBlock()])
        self.grid = nn.ModuleList([nn.ModuleList([nn.Linear(5, 5)]) for _ in range(2)])
        self.heads = nn.ModuleDict({"a": nn.Linear(5, 5), "b": nn.ModuleList([nn.Linear(5, 5)])})
        self.net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Sequential(nn.Linear(7, 5)))
        self.stages = nn.ModuleList([nn.Sequential(nn.ReLU(), nn.Linear(5, 5))])
        self.scale = nn.Parameter(torch.ones(5))
        self.shifts = nn.ParameterList([nn.Parameter(torch.ones(5)) for _ in range(2)])

    def forward(self, x):
        x = self.first(x)
        for layer in self.layer:
            x = layer(x)
        for row in self.grid:
            x = row[0](x)
        x = self.heads["b"][0](self.heads["a"](x))
        x = self.stages[0](self.net(x))
        return x * self.scale + self.shifts[0] - self.shifts[1]


class FlaxBlock(linen.Module):
    def setup(self):
        self.inner = linen.Dense(5)

    def __call__(self, x):
        return self.inner(x)


class FlaxNet(linen.Module):
    def setup(self):
        ones = linen.initializers.ones
        self.first = linen.Dense(5)
        self.layer = [linen.Dense(5), FlaxBlock()]
        self.grid = [[linen.Dense(5)] for _ in range(2)]
        self.heads = {"a": linen.Dense(5), "b": [linen.Dense(5)]}
        self.net = linen.Sequential(
            [linen.Dense(7), linen.relu, linen.Sequential([linen.Dense(5)])]
        )
        self.stages = [linen.Sequential([linen.relu, linen.Dense(5)])]
        self.scale = self.param("scale", ones, (5,))
        self.shifts = [self.param(f"shifts_{i}", ones, (5,)) for i in range(2)]

    def __call__(self, x):
        x = self.first(x)
        for layer in self.layer:
            x = layer(x)
        for row in self.grid:
            x = row[0](x)
        x = self.heads["b"][0](self.heads["a"](x))
        x = self.stages[0](self.net(x))
        return x * self.scale + self.shifts[0] - self.shifts[1]


def shapes(tree):
    return {path: tuple(array.shape) for path, array in flatten(tree).items()}


def compare(torch_model, flax_model):
    torch.manual_seed(0)
    for parameter in torch_model.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 3)
    tree = convert_to_pytree(torch_model.state_dict(), model=torch_model)
    assert shapes(tree) == shapes(flax_model.init(jax.random.key(0), x.numpy()))
    with jax.default_matmul_precision("highest"):
        output = np.asarray(flax_model.apply(tree, x.numpy()))
    np.testing.assert_allclose(output, torch_model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_containers_and_parameters():
    compare(TorchNet(), FlaxNet())


def test_a_sequential_as_the_whole_model():
    compare(
        nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4))),
        linen.Sequential([linen.Dense(5), linen.relu, linen.Sequential([linen.Dense(4)])]),
    )


def test_a_sequential_with_names_counts_positions():
    """linen's Sequential has no names."""
    compare(
        nn.Sequential(OrderedDict(into=nn.Linear(3, 5), act=nn.ReLU(), out=nn.Linear(5, 4))),
        linen.Sequential([linen.Dense(5), linen.relu, linen.Dense(4)]),
    )
