"""An embedding of which one row is padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array


class PaddedEmbed(nn.Embed):
    """`torch.nn.Embedding` with `padding_idx`: looking that row up gives it no gradient."""

    padding_idx: int = 0

    def __call__(self, inputs: Array) -> Array:
        """Rows of the table: (…, features) for ids of shape (…)."""
        rows = super().__call__(inputs)
        padding = (inputs == self.padding_idx)[..., None]
        return jnp.where(padding, jax.lax.stop_gradient(rows), rows)
