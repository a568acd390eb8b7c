"""Source for ports: the largest and the middle values along an axis."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def max_with_index(x: jax.Array, axis: int, keepdims: bool = False) -> tuple[jax.Array, jax.Array]:
    """The largest along an axis and its index; as in torch, no other element of it has a gradient."""
    index = jnp.argmax(x, axis=axis, keepdims=True)
    there = jnp.indices(x.shape, sparse=True)[axis] == index
    largest = jnp.where(there, x, 0).sum(axis=axis, keepdims=keepdims)
    return largest, index if keepdims else index.squeeze(axis)


def min_with_index(x: jax.Array, axis: int, keepdims: bool = False) -> tuple[jax.Array, jax.Array]:
    """The smallest along an axis and its index; as in torch, no other element of it has a gradient."""
    smallest, index = max_with_index(-x, axis, keepdims)
    return -smallest, index


def largest(x: jax.Array, axis: int, keepdims: bool = False) -> jax.Array:
    """`x.max(axis)`, with torch's gradient among equal elements: the first has all of it."""
    return max_with_index(x, axis, keepdims)[0]


def smallest(x: jax.Array, axis: int, keepdims: bool = False) -> jax.Array:
    """`x.min(axis)`, with torch's gradient among equal elements: the first has all of it."""
    return min_with_index(x, axis, keepdims)[0]


def top_k_along(
    x: jax.Array, k: int, axis: int = -1, largest: bool = True
) -> tuple[jax.Array, jax.Array]:
    """The k largest (or smallest) along an axis, and where they are."""
    moved = jnp.moveaxis(x, axis, -1)
    order = jnp.argsort(moved, axis=-1, descending=largest)[..., :k]
    ordered = jnp.take_along_axis(moved, order, axis=-1)
    return jnp.moveaxis(ordered, -1, axis), jnp.moveaxis(order, -1, axis)


def kth_smallest(
    x: jax.Array, place: int, axis: int, keepdims: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The one at this place in order, counted from 0, and where it is."""
    order = jnp.argsort(x, axis=axis)
    where = jnp.take(order, jnp.asarray([place]), axis=axis)
    taken = jnp.take_along_axis(x, where, axis=axis)
    return (taken, where) if keepdims else (taken.squeeze(axis), where.squeeze(axis))
