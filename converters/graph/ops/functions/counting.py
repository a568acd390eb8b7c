"""Source for ports: counts of elements, and positions of values."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def count_in_bins(
    x: jax.Array, bins: int, low: jax.Array | float, high: jax.Array | float
) -> jax.Array:
    """Count the values in bins of equal widths from `low` to `high`, without those outside."""
    alone = jnp.equal(low, high)  # a range of one value becomes wider by 1 both ways
    low, high = jnp.where(alone, low - 1, low), jnp.where(alone, high + 1, high)
    edge = jnp.floor((x - low) * bins / (high - low)).astype(jnp.int32)
    place = jnp.where((x >= low) & (x <= high), jnp.minimum(edge, bins - 1), bins)
    return jnp.zeros(bins, x.dtype).at[place.reshape(-1)].add(1, mode="drop")


def last_place(x: jax.Array, running: jax.Array, axis: int) -> jax.Array:
    """Index of a running extreme: the last one so far at which `x` is equal to it."""
    here = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jax.lax.cummax(jnp.where((x == running) | jnp.isnan(x), here, 0), axis=axis)
