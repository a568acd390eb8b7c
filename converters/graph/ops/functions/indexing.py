"""Writing where an index or a mask says, in the ways that jax.numpy lacks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def scatter(
    x: jax.Array, index: jax.Array, values: jax.Array | float, axis: int, how: str = "set"
) -> jax.Array:
    """Along an axis, write (or "add", "multiply") each value where its index says.

    As in torch, sums and products of 16 bits are accumulated in float32.
    """
    place = list(jnp.indices(index.shape, sparse=True))
    place[axis] = index
    if how == "set":
        return x.at[tuple(place)].set(values)
    there = accumulator(x).at[tuple(place)]
    return {"add": there.add, "multiply": there.multiply}[how](values).astype(x.dtype)


def accumulator(x: jax.Array) -> jax.Array:
    """An array of 16 bits in float32; another array as it is."""
    narrow = jnp.issubdtype(x.dtype, jnp.floating)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32)) if narrow else x


def scatter_reduce(
    x: jax.Array,
    index: jax.Array,
    values: jax.Array,
    reduce: str,
    axis: int,
    include_self: bool = True,
) -> jax.Array:
    """Put together what falls on one place: "sum", "prod", "mean", "amax" or "amin".

    As in torch, sums and products of 16 bits are accumulated in float32.
    """
    grid = list(jnp.indices(index.shape, sparse=True))
    grid[axis] = index
    place = tuple(grid)
    replaced = x
    if not include_self:
        neutral = {"sum": 0, "prod": 1, "mean": 0, "amax": -jnp.inf, "amin": jnp.inf}[reduce]
        x = x.at[place].set(neutral)
    if reduce in ("amax", "amin"):
        there = x.at[place]
        extreme = there.max(values) if reduce == "amax" else there.min(values)
        return extreme if include_self else share_with(extreme, replaced, place, values)
    wide = accumulator(x)
    if reduce == "prod":
        return wide.at[place].multiply(values).astype(x.dtype)
    total = wide.at[place].add(values)
    if reduce == "sum":
        return total.astype(x.dtype)
    count = jnp.full(x.shape, int(include_self), wide.dtype).at[place].add(1)
    return (total / jnp.maximum(count, 1)).astype(x.dtype)


def share_with(extreme: jax.Array, replaced: jax.Array, place: Any, values: Any) -> jax.Array:
    """Extremes with torch's gradient: what values replace takes a share among equals, and drops it."""
    if not jnp.issubdtype(extreme.dtype, jnp.floating):
        return extreme
    count = jnp.zeros(extreme.shape).at[place].add(values == extreme[place])
    share = (count / jnp.maximum(count + (replaced == extreme), 1)).astype(extreme.dtype)
    fixed = jax.lax.stop_gradient(extreme)
    shared = fixed + share * (extreme - fixed)
    return jnp.where((count > 0) & jnp.isfinite(fixed), shared, extreme)


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
