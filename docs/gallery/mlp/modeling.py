"""MLP in Flax, ported from examples.mlp.torch_mlp."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import MLPConfig


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any) -> Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights that `init` makes.
        precision: precision of the matrix products in layers.
    """

    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @property
    def numerics(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype, "precision": self.precision}


class MLP(Module):
    config: MLPConfig

    def setup(self) -> None:
        dense: Any = partial(nn.Dense, kernel_init=torch_uniform, **self.numerics)
        self.fc1 = dense(self.config.hidden, bias_init=uniform_within(self.config.inputs**-0.5))
        init = uniform_within(self.config.hidden**-0.5)
        self.fc2 = dense(self.config.hidden // 2, bias_init=init)
        self.fc3 = dense(
            self.config.classes, bias_init=uniform_within((self.config.hidden // 2) ** -0.5)
        )

    def __call__(self, x: Array) -> Array:
        """(batch, 784) pixels → (batch, 10) logits."""
        x = jax.nn.relu(self.fc1(x))
        x = jax.nn.relu(self.fc2(x))
        return self.fc3(x)
