"""MLP in Flax, ported from examples.mlp.torch_mlp."""

from __future__ import annotations

import jax
from flax import linen as nn

from .config import MLPConfig


class MLP(nn.Module):
    config: MLPConfig

    def setup(self) -> None:
        self.fc1 = nn.Dense(self.config.hidden)
        self.fc2 = nn.Dense(self.config.hidden // 2)
        self.fc3 = nn.Dense(self.config.classes)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = jax.nn.relu(self.fc1(x))
        x = jax.nn.relu(self.fc2(x))
        return self.fc3(x)
