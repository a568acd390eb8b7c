"""An embedding of which one row is padding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class PaddedEmbed(nnx.Embed):
    """`torch.nn.Embedding` with `padding_idx`: looking that row up gives it no gradient.

    Args:
        num_embeddings, features: rows and columns of the table.
        padding_idx: the row.
        options: as those of `nnx.Embed`, `rngs` among them.
    """

    def __init__(
        self, num_embeddings: int, features: int, *, padding_idx: int = 0, **options: Any
    ) -> None:
        super().__init__(num_embeddings, features, **options)
        self.padding_idx = padding_idx

    def __call__(self, inputs: Array) -> Array:
        """Rows of the table: (…, features) for ids of shape (…)."""
        rows = super().__call__(inputs)
        padding = (inputs == self.padding_idx)[..., None]
        return jnp.where(padding, jax.lax.stop_gradient(rows), rows)
