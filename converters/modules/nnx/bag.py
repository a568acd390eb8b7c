"""`torch.nn.EmbeddingBag` as an nnx module."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array

from converters.modules.functional.bag import Mode, embedding_bag


class EmbeddingBag(nnx.Module):
    """`torch.nn.EmbeddingBag` without max_norm.

    Args:
        num_embeddings: rows of the table.
        features: of a row.
        mode: "sum", "mean" or "max" of a bag's rows.
        padding_idx: the id that does not count, or None.
        include_last_offset: whether offsets end with the number of ids.
        embedding_init: of the table; None: torch's.
        rngs: for the table.
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        mode: Mode = "mean",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        embedding_init: nnx.initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        self.mode: Mode = mode
        self.padding_idx, self.include_last_offset = padding_idx, include_last_offset
        init = embedding_init or nnx.initializers.normal(1.0)  # torch's
        table = init(rngs.params(), (num_embeddings, features), jnp.float32)
        self.embedding = nnx.Param(table)

    def __call__(
        self, ids: Array, offsets: Array | None = None, per_sample_weights: Array | None = None
    ) -> Array:
        """Map (bags, ids of each), or (ids,) with offsets, to (bags, features)."""
        return embedding_bag(
            self.embedding[...],
            ids,
            offsets,
            per_sample_weights,
            mode=self.mode,
            padding_idx=self.padding_idx,
            include_last_offset=self.include_last_offset,
        )
