"""Source for ports: random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def dropout(
    key: jax.Array, x: jax.Array, rate: float, axes: Sequence[int] | None = None
) -> jax.Array:
    """Zeros in the place of some elements, the others scaled.

    With `axes` an element along these is kept or not as a whole.
    """
    if rate == 1:
        return jnp.zeros_like(x)
    shape = [side if axes is None or axis in axes else 1 for axis, side in enumerate(x.shape)]
    keep = jax.random.bernoulli(key, 1 - rate, shape)
    return jnp.where(keep, x / (1 - rate), 0)


def dropout_and_mask(key: jax.Array, x: jax.Array, rate: float) -> tuple[jax.Array, jax.Array]:
    """Dropout, and which elements it keeps."""
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / max(1 - rate, 1e-30), 0), keep


def sample_indices(
    key: jax.Array, weights: jax.Array, count: int, replacement: bool = False
) -> jax.Array:
    """Indices along the last axis, drawn by their weights; no index twice without replacement."""
    logits = jnp.log(weights)
    if not replacement:
        noise = jax.random.gumbel(key, logits.shape, logits.dtype)
        return jax.lax.top_k(logits + noise, count)[1]
    noise = jax.random.gumbel(key, (*logits.shape[:-1], count, logits.shape[-1]), logits.dtype)
    return (logits[..., None, :] + noise).argmax(-1)
