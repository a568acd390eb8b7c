"""Images (N, C, …) of other sizes, as torch.nn.functional.interpolate makes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def resize_nearest(
    x: jax.Array,
    size: tuple[int, ...],
    scale: tuple[float, ...] | None = None,
    exact: bool = False,
) -> jax.Array:
    """The pixel at the corner of each new one; with `exact` the one at its middle."""
    for axis, count in zip(range(-len(size), 0), size, strict=True):
        factor = np.float32(1 / scale[axis] if scale else x.shape[axis] / count)
        place = np.arange(count, dtype=np.float32) + np.float32(0.5 if exact else 0)
        taken = np.minimum(np.floor(place * factor).astype(np.int32), x.shape[axis] - 1)
        x = jnp.take(x, jnp.asarray(taken), axis=axis)
    return x


def resize_linear(
    x: jax.Array,
    size: tuple[int, ...],
    scale: tuple[float, ...] | None = None,
    align_corners: bool = False,
    antialias: bool = False,
    cubic: bool = False,
) -> jax.Array:
    """Each axis by the weights of the pixels around each place."""
    for axis, count in zip(range(-len(size), 0), size, strict=True):
        weights = resize_weights(
            x.shape[axis], count, scale[axis] if scale else None, align_corners, antialias, cubic
        )
        near = jnp.asarray(weights, x.dtype)
        # Of pixels nothing may be rounded to bfloat16, as a TPU does in products by default.
        resized = jnp.tensordot(x, near, axes=(axis, 0), precision="highest")
        x = jnp.moveaxis(resized, -1, axis)
    return x


def resize_weights(
    old: int, new: int, scale: float | None, align_corners: bool, antialias: bool, cubic: bool
) -> np.ndarray:
    """Weight of each of `old` pixels in each of `new` pixels."""
    apart = 1 / scale if scale else old / new
    if align_corners:
        place = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0)
    else:
        place = (np.arange(new) + 0.5) * apart - 0.5
        if not cubic and not antialias:
            place = np.maximum(place, 0)
    width = max(apart, 1) if antialias else 1  # a pixel that becomes smaller reaches further
    reach = (2 if cubic else 1) * width
    near = np.floor(place).astype(int)[:, None] + np.arange(-int(reach) - 1, int(reach) + 3)
    away = np.abs(near - place[:, None]) / width
    if not cubic:
        amount = np.maximum(1 - away, 0)
    else:
        a = -0.5 if antialias else -0.75
        inner = ((a + 2) * away - (a + 3)) * away**2 + 1
        outer = ((away - 5) * away + 8) * away * a - 4 * a
        amount = np.where(away <= 1, inner, np.where(away < 2, outer, 0))
    if antialias:  # what lies outside does not count
        amount = np.where((near >= 0) & (near < old), amount, 0)
        amount = amount / amount.sum(axis=1, keepdims=True)
    weights = np.zeros((old, new))
    np.add.at(weights, (np.clip(near, 0, old - 1), np.arange(new)[:, None]), amount)
    return weights
