"""Writing where an index or a mask says, in the ways that jax.numpy lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def scatter(
    x: jax.Array, index: jax.Array, values: jax.Array | float, axis: int, how: str = "set"
) -> jax.Array:
    """Along an axis, write (or "add", "multiply") each value where its index says."""
    place = list(jnp.indices(index.shape, sparse=True))
    place[axis] = index
    there = x.at[tuple(place)]
    return {"set": there.set, "add": there.add, "multiply": there.multiply}[how](values)


def scatter_reduce(
    x: jax.Array,
    index: jax.Array,
    values: jax.Array,
    reduce: str,
    axis: int,
    include_self: bool = True,
) -> jax.Array:
    """Put together what falls on one place: "sum", "prod", "mean", "amax" or "amin"."""
    grid = list(jnp.indices(index.shape, sparse=True))
    grid[axis] = index
    place = tuple(grid)
    if not include_self:
        neutral = {"sum": 0, "prod": 1, "mean": 0, "amax": -jnp.inf, "amin": jnp.inf}[reduce]
        x = x.at[place].set(neutral)
    if reduce == "amax":
        return x.at[place].max(values)
    if reduce == "amin":
        return x.at[place].min(values)
    if reduce == "prod":
        return x.at[place].multiply(values)
    total = x.at[place].add(values)
    if reduce == "sum":
        return total
    count = jnp.full(x.shape, int(include_self), x.dtype).at[place].add(1)
    return total / jnp.maximum(count, 1)


def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    """The elements of `source`, one after the other, where the mask is true."""
    mask = jnp.broadcast_to(mask, x.shape)
    turn = jnp.cumsum(mask.reshape(-1)) - 1
    return jnp.where(mask, source.reshape(-1)[turn].reshape(x.shape), x)


def put_where(x: jax.Array, mask: jax.Array, values: jax.Array, add: bool = False) -> jax.Array:
    """`x[mask] = values` (or `+=`), of which there is one for each place where the mask is true."""
    turn = jnp.cumsum(mask.reshape(-1)) - 1
    chosen = values[turn].reshape(x.shape)
    mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    return jnp.where(mask, x + chosen if add else chosen, x)


def search_rows(rows: jax.Array, values: jax.Array, side: str = "left") -> jax.Array:
    """Index at which each value would be inserted in its sorted row."""
    places = jax.vmap(lambda row, value: jnp.searchsorted(row, value, side=side))(
        rows.reshape(-1, rows.shape[-1]), values.reshape(-1, values.shape[-1])
    )
    return places.reshape(values.shape)
