"""torch's EmbeddingBag: sums, means or maxima of rows per bag."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

Mode = Literal["sum", "mean", "max"]


def embedding_bag(
    table: Array,
    ids: Array,
    offsets: Array | None,
    per_sample_weights: Array | None,
    *,
    mode: Mode,
    padding_idx: int | None,
    include_last_offset: bool,
) -> Array:
    """Return one row for each bag.

    Args:
        table: (rows, features).
        ids: (bags, ids of each), or (ids,) with offsets.
        offsets: the start of each bag in `ids`; only with ids of one axis.
        per_sample_weights: factors of the rows, shaped like `ids`; mode "sum" only.
        mode: the reduction of a bag's rows. An empty bag gives 0.
        padding_idx: the id to ignore, or None.
        include_last_offset: whether `offsets` ends with the number of ids.

    Raises:
        ValueError: offsets are missing or too many, or weights without mode "sum".
    """
    if (ids.ndim == 1) != (offsets is not None):
        raise ValueError("offsets go with ids of one axis, and only with those")
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"per_sample_weights go with the mode sum, not {mode}")
    if offsets is None:
        bags = ids.shape[0]
        owner = jnp.repeat(jnp.arange(bags), ids.shape[1])
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        bags = starts.shape[0]
        owner = jnp.searchsorted(starts, jnp.arange(ids.shape[0]), side="right") - 1
    ids = ids.reshape(-1)
    counted = jnp.ones(ids.shape, bool)
    if padding_idx is not None:
        counted = ids != (padding_idx % table.shape[0])
    rows = table[ids]
    count = jax.ops.segment_sum(counted.astype(table.dtype), owner, bags)[:, None]
    if mode == "max":
        rows = jnp.where(counted[:, None], rows, -jnp.inf)
        return jnp.where(count > 0, jax.ops.segment_max(rows, owner, bags), 0)
    factor = counted.astype(table.dtype)
    if per_sample_weights is not None:
        factor = factor * per_sample_weights.reshape(-1)
    total = jax.ops.segment_sum(rows * factor[:, None], owner, bags)
    return total if mode == "sum" else total / jnp.maximum(count, 1)
