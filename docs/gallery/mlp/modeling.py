"""MLP in Flax, ported from examples.mlp.torch_mlp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike

from .config import MLPConfig


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    bound = float(np.prod(shape[:-1])) ** -0.5
    return jax.random.uniform(key, tuple(shape), dtype, -bound, bound)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""

    def init(key: Any, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, tuple(shape), dtype, -bound, bound)

    return init


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: of the computation; None: that of the weights and inputs.
        param_dtype: of the weights that `init` makes.
        precision: of the products in layers.
    """

    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def numerics(self) -> dict[str, Any]:
        return {**self.dtypes, "precision": self.precision}


class MLP(Module):
    config: MLPConfig

    def setup(self) -> None:
        self.fc1 = nn.Dense(
            self.config.hidden,
            kernel_init=torch_uniform,
            bias_init=uniform_within(self.config.inputs ** (-0.5)),
            **self.numerics,
        )
        self.fc2 = nn.Dense(
            self.config.hidden // 2,
            kernel_init=torch_uniform,
            bias_init=uniform_within(self.config.hidden ** (-0.5)),
            **self.numerics,
        )
        self.fc3 = nn.Dense(
            self.config.classes,
            kernel_init=torch_uniform,
            bias_init=uniform_within((self.config.hidden // 2) ** (-0.5)),
            **self.numerics,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(self.fc1(x))
        x = jax.nn.relu(self.fc2(x))
        return self.fc3(x)
