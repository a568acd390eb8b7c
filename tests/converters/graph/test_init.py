"""`init` of a port makes all that the port reads, with the shapes that its weights have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from converters.graph import Port, port
from tests.converters.graph.flax_side import variables


class Reader(nn.Module):
    """A module that reads the weights of its layers and calls some of them not at all, or later."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 4, groups=6, padding=3)
        self.wide = nn.Conv2d(3, 5, (2, 3), dilation=2)
        self.step = nn.Linear(6, 9)
        self.norm = nn.LayerNorm(9)
        self.groups = nn.GroupNorm(3, 9)
        self.later = nn.Linear(9, 9, bias=False)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        taps = self.conv.weight.squeeze(1) * x[:, :4].sum((0, 1))[:, None]
        x = (self.step.weight @ (x + self.conv.bias).mT).mT + self.step.bias
        x = functional.layer_norm(x, (9,)) * self.norm.weight + self.groups.bias * taps.sum()
        x = x * self.later.weight.sum() + self.later(x)
        return x + functional.conv2d(image, self.wide.weight.flip(-1)).sum()


@pytest.mark.long
def test_weights_that_are_read_and_whose_layer_is_not_called_are_there(
    load: Callable[[Port], Any],
) -> None:
    torch.manual_seed(0)
    model = Reader().eval()
    inputs = {"x": torch.randn(2, 5, 6), "image": torch.randn(2, 3, 5, 6)}
    written = port(model, inputs)
    flax, weights = load(written), variables(model, written, inputs)
    given = {name: jnp.asarray(one.numpy()) for name, one in inputs.items()}
    made = flax.init(jax.random.key(0), **given)
    shapes = jax.tree.map(jnp.shape, made)
    assert set(made["params"]) >= {"conv", "step", "norm", "later", "wide"}
    read = jax.tree.leaves_with_path(jax.tree.map(jnp.shape, weights), is_leaf=_is_shape)
    assert dict(jax.tree.leaves_with_path(shapes, is_leaf=_is_shape)) == dict(read)
    with torch.no_grad():
        expected = model(**inputs).numpy()
    with jax.default_matmul_precision("highest"):
        found = jax.jit(flax.apply)(weights, **given)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple)


@pytest.mark.long
def test_mamba_is_made_from_a_seed(load: Callable[[Port], Any]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(
        vocab_size=32, hidden_size=12, num_hidden_layers=2, state_size=5, time_step_rank=3
    )
    torch.manual_seed(0)
    model = transformers.MambaForCausalLM(config).eval()
    inputs = {"input_ids": torch.randint(0, 32, (2, 9))}
    written = port(model, inputs)
    flax, weights = load(written), variables(model, written, inputs)
    given = {"input_ids": jnp.asarray(inputs["input_ids"].numpy())}
    made = flax.init(jax.random.key(0), **given)
    assert jax.tree.structure(made["params"]) == jax.tree.structure(weights["params"])
    assert jax.tree.map(jnp.shape, made["params"]) == jax.tree.map(jnp.shape, weights["params"])
