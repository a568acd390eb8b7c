"""The model of before.py in Flax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike


@dataclass(frozen=True)
class StepConfig:
    """The sizes of Step."""


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


class ToyModel(Module):
    def setup(self) -> None:
        self.net1 = nn.Dense(32, **self.numerics)
        self.net2 = nn.Dense(5, **self.numerics)

    def __call__(self, x: Array) -> Array:
        return self.net2(jax.nn.relu(self.net1(x)))
