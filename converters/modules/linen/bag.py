"""`torch.nn.EmbeddingBag` as a linen module."""

from __future__ import annotations

from flax import linen as nn
from jax import Array

from converters.modules.functional.bag import Mode, embedding_bag


class EmbeddingBag(nn.Module):
    """`torch.nn.EmbeddingBag` without max_norm.

    Attributes:
        num_embeddings: rows of the table.
        features: of a row.
        mode: "sum", "mean" or "max" of a bag's rows.
        padding_idx: the id that does not count, or None.
        include_last_offset: whether offsets end with the number of ids.
    """

    num_embeddings: int
    features: int
    mode: Mode = "mean"
    padding_idx: int | None = None
    include_last_offset: bool = False
    embedding_init: nn.initializers.Initializer = nn.initializers.normal(1.0)

    @nn.compact
    def __call__(
        self, ids: Array, offsets: Array | None = None, per_sample_weights: Array | None = None
    ) -> Array:
        """Map (bags, ids of each), or (ids,) with offsets, to (bags, features)."""
        shape = (self.num_embeddings, self.features)
        return embedding_bag(
            self.param("embedding", self.embedding_init, shape),
            ids,
            offsets,
            per_sample_weights,
            mode=self.mode,
            padding_idx=self.padding_idx,
            include_last_offset=self.include_last_offset,
        )
