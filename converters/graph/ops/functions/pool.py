"""Source for ports: pooling of images (N, C, …), channels second."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def pool_edges(
    sides: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | None,
    dilation: tuple[int, ...] | None,
    ceil_mode: bool,
) -> list[tuple[int, int]]:
    """Padding of each side; with `ceil_mode` a last window may reach beyond the end."""
    edges = []
    for place, side in enumerate(sides):
        pad = padding[place] if padding else 0
        reach = (dilation[place] if dilation else 1) * (kernel[place] - 1) + 1
        rest = side + 2 * pad - reach
        count = -(-rest // stride[place]) if ceil_mode else rest // stride[place]
        if ceil_mode and count * stride[place] >= side + pad:
            count -= 1  # a window that begins behind the end
        edges.append((pad, count * stride[place] + reach - side - pad))
    return edges


def max_pool(
    x: jax.Array,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    ceil_mode: bool = False,
) -> jax.Array:
    """The largest of each window."""
    before = (1,) * (x.ndim - len(kernel))
    edges = pool_edges(x.shape[-len(kernel) :], kernel, stride, padding, dilation, ceil_mode)
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jax.lax.reduce_window(
        x,
        np.asarray(least, x.dtype)[()],
        jax.lax.max,
        before + kernel,
        before + stride,
        [(0, 0)] * len(before) + [(low, max(high, 0)) for low, high in edges],
        window_dilation=before + (dilation or (1,) * len(kernel)),
    )


def max_pool_places(
    x: jax.Array,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    ceil_mode: bool = False,
) -> jax.Array:
    """Index in the whole image of the largest value of each window."""
    rank = len(kernel)
    sides = x.shape[-rank:]
    edges = pool_edges(sides, kernel, stride, padding, dilation, ceil_mode)
    windows, places = x, jnp.arange(np.prod(sides)).reshape(sides)
    for axis, (low, high) in enumerate(edges):
        apart = dilation[axis] if dilation else 1
        count = (sides[axis] + low + high - apart * (kernel[axis] - 1) - 1) // stride[axis] + 1
        taken = jnp.arange(count)[:, None] * stride[axis] + jnp.arange(kernel[axis]) * apart - low
        inside = (taken >= 0) & (taken < sides[axis])
        taken = jnp.clip(taken, 0, sides[axis] - 1)
        # Each axis becomes two: the window and the place in it, which goes to the end.
        at = axis - rank - axis
        windows = jnp.take(windows, taken, axis=at)
        shape = (*taken.shape, *(1,) * (-at - 1))
        windows = jnp.where(inside.reshape(shape), windows, -jnp.inf)
        windows = jnp.moveaxis(windows, at, -1)
        places = jnp.moveaxis(jnp.take(places, taken, axis=at), at, -1)
    flat = windows.reshape(*windows.shape[:-rank], -1)
    best = flat.argmax(axis=-1)
    places = jnp.broadcast_to(places.reshape(*places.shape[:-rank], -1), flat.shape)
    return jnp.take_along_axis(places, best[..., None], axis=-1)[..., 0]


def avg_pool(
    x: jax.Array,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | None = None,
    ceil_mode: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> jax.Array:
    """The mean of each window; padding counts as zeros, what a last window hangs over does not.

    As in torch, sums of 16 bits are accumulated in float32.
    """
    dtype = x.dtype
    x = x.astype(jnp.promote_types(dtype, jnp.float32))
    rank = len(kernel)
    before = (1,) * (x.ndim - rank)
    sides = x.shape[-rank:]
    edges = pool_edges(sides, kernel, stride, padding, None, ceil_mode)
    window, steps = before + kernel, before + stride
    pads = [(0, 0)] * len(before) + [(low, max(high, 0)) for low, high in edges]
    total = jax.lax.reduce_window(x, np.zeros((), x.dtype)[()], jax.lax.add, window, steps, pads)
    if divisor is not None:
        return (total / divisor).astype(dtype)
    around = [(low, min(low, max(high, 0))) if count_padding else (0, 0) for low, high in edges]
    ones = jnp.pad(jnp.ones(sides, x.dtype), around, constant_values=1)
    rest = [
        (low - own[0], max(high, 0) - own[1])
        for (low, high), own in zip(edges, around, strict=True)
    ]
    count = jax.lax.reduce_window(
        ones, np.zeros((), x.dtype)[()], jax.lax.add, kernel, stride, rest
    )
    return (total / count).astype(dtype)


def adaptive_avg_pool(x: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """The means of `size` windows, which overlap where a side is not a multiple."""
    for axis, count in zip(range(-len(size), 0), size, strict=True):
        side = x.shape[axis]
        first = np.arange(count) * side // count
        last = -(-(np.arange(count) + 1) * side // count)
        inside = (np.arange(side)[:, None] >= first) & (np.arange(side)[:, None] < last)
        weights = jnp.asarray(inside / (last - first), x.dtype)
        # A mean rounds nothing to bfloat16, as a TPU does in products by default.
        pooled = jnp.tensordot(x, weights, axes=(axis, 0), precision="highest")
        x = jnp.moveaxis(pooled, -1, axis)
    return x


def adaptive_max_pool(x: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """The largest of `size` windows, which overlap where a side is not a multiple."""
    places = adaptive_max_places(x, size)
    flat = (*x.shape[: -len(size)], -1)
    chosen = jnp.take_along_axis(x.reshape(flat), places.reshape(flat), axis=-1)
    return chosen.reshape(places.shape)


def adaptive_max_places(x: jax.Array, size: tuple[int, ...]) -> jax.Array:
    """Index in the whole image of the largest value of each of `size` windows."""
    sides = x.shape[-len(size) :]
    largest = []
    for at in np.ndindex(*size):
        bounds = [
            (i * side // count, -(-(i + 1) * side // count))
            for i, side, count in zip(at, sides, size, strict=True)
        ]
        window = x[(..., *(slice(low, high) for low, high in bounds))]
        inside = [high - low for low, high in bounds]
        place = window.reshape(*window.shape[: -len(size)], -1).argmax(axis=-1)
        parts = jnp.unravel_index(place, inside)
        moved = [part + low for part, (low, _) in zip(parts, bounds, strict=True)]
        largest.append(jnp.ravel_multi_index(moved, sides, mode="clip"))
    places = jnp.stack(largest, axis=-1)
    return places.reshape(*places.shape[:-1], *size)
