"""Source for ports: windows, diagonals and pixels that jax.numpy lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sliding_windows(x: jax.Array, axis: int, size: int, step: int) -> jax.Array:
    """Windows of `size` elements along an axis, `step` apart; what is in a window is the last axis."""
    starts = jnp.arange(0, x.shape[axis] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + jnp.arange(size), axis=axis)
    return jnp.moveaxis(windows, axis % x.ndim + 1, -1)


def diagonal_matrices(x: jax.Array, offset: int = 0) -> jax.Array:
    """The last axis as the diagonal of matrices that are 0 elsewhere."""
    size = x.shape[-1] + abs(offset)
    row = jnp.arange(x.shape[-1]) + max(-offset, 0)
    matrices = jnp.zeros((*x.shape[:-1], size, size), x.dtype)
    return matrices.at[..., row, row + offset].set(x)


def pixel_shuffle(x: jax.Array, factor: int) -> jax.Array:
    """(…, C * r², H, W) → (…, C, H * r, W * r)."""
    *batch, channels, height, width = x.shape
    x = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    x = jnp.moveaxis(x, (-4, -3), (-3, -1))
    return x.reshape(*batch, channels // factor**2, height * factor, width * factor)


def pixel_unshuffle(x: jax.Array, factor: int) -> jax.Array:
    """(…, C, H * r, W * r) → (…, C * r², H, W)."""
    *batch, channels, height, width = x.shape
    x = x.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    x = jnp.moveaxis(x, (-3, -1), (-4, -3))
    return x.reshape(*batch, channels * factor**2, height // factor, width // factor)
