"""Source for ports: norms whose weights are arguments, channels second."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from converters.graph.ops.functions.arithmetic import clamp, safe_sqrt


def layer_norm(
    x: jax.Array,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
    axes: int = 1,
) -> jax.Array:
    """The mean of the last axes to 0 and their variance to 1, then weight and bias."""
    last = tuple(range(-axes, 0))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(axis=last, keepdims=True)
    variance = wide.var(axis=last, keepdims=True)
    wide = (wide - mean) * jax.lax.rsqrt(variance + eps)
    if weight is not None:
        wide = wide * weight
    if bias is not None:
        wide = wide + bias
    return wide.astype(x.dtype)


def group_norm(
    x: jax.Array,
    groups: int,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
) -> jax.Array:
    """Groups of channels (the second axis) to mean 0 and variance 1, then weight and bias."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32)).reshape(x.shape[0], groups, -1)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = wide.var(axis=-1, keepdims=True)
    wide = ((wide - mean) * jax.lax.rsqrt(variance + eps)).reshape(x.shape)
    channels = (-1,) + (1,) * (x.ndim - 2)
    if weight is not None:
        wide = wide * weight.reshape(channels)
    if bias is not None:
        wide = wide + bias.reshape(channels)
    return wide.astype(x.dtype)


def batch_norm(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
) -> jax.Array:
    """Channels (the second axis) by these means and variances, then weight and bias."""
    channels = (-1,) + (1,) * (x.ndim - 2)
    scale = jax.lax.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    normalized = (x - mean.reshape(channels)) * scale.reshape(channels)
    if bias is not None:
        normalized = normalized + bias.reshape(channels)
    return normalized.astype(x.dtype)


def cosine_similarity(x: jax.Array, y: jax.Array, axis: int, eps: float) -> jax.Array:
    """The cosine of the angle between vectors along an axis; no length counts for less than `eps`."""
    x, y = jnp.broadcast_arrays(x, y)
    lengths = (safe_sqrt(jnp.square(vectors).sum(axis=axis, keepdims=True)) for vectors in (x, y))
    x, y = (v / clamp(length, eps) for v, length in zip((x, y), lengths, strict=True))
    return (x * y).sum(axis=axis)
