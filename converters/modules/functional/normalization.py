"""torch's normalizations: variances in two passes, running statistics as in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array


@dataclass(frozen=True)
class Statistics:
    """Mean and variance of a batch, and torch's update of the running statistics.

    Attributes:
        mean: broadcastable to the input.
        var: the biased variance for the normalization, broadcastable to the input.
        running_mean: (channels,): the batch's contribution to the running mean.
        running_var: (channels,): unbiased, n / (n - 1) times the biased one.
    """

    mean: Array
    var: Array
    running_mean: Array
    running_var: Array


def batch_statistics(x: Array, axis_name: str | None = None) -> Statistics:
    """Return statistics of all axes but the last, over all replicas of `axis_name`, if any.

    Every replica must have the same number of elements, as with `jax.pmap` and `shard_map`.
    """
    axes = tuple(range(x.ndim - 1))
    count = x.size // x.shape[-1]
    mean = x.mean(axes)
    if axis_name is not None:
        mean = jax.lax.pmean(mean, axis_name)
        count = count * jax.lax.psum(1, axis_name)
    var = jnp.square(x - mean).mean(axes)
    if axis_name is not None:
        var = jax.lax.pmean(var, axis_name)
    return Statistics(mean, var, mean, var * (count / (count - 1)))


def instance_statistics(x: Array) -> Statistics:
    """Return statistics of the axes between the first and the last, for each instance and channel."""
    axes = tuple(range(1, x.ndim - 1))
    count = x.size // (x.shape[0] * x.shape[-1])
    mean = x.mean(axes, keepdims=True)
    var = jnp.square(x - mean).mean(axes, keepdims=True)
    # torch updates with the mean over the batch of each instance's statistics.
    running = tuple(value.reshape(x.shape[0], -1).mean(0) for value in (mean, var))
    return Statistics(mean, var, running[0], running[1] * (count / (count - 1)))


def normalize(
    x: Array,
    mean: Array,
    var: Array,
    epsilon: float,
    scale: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Return (x - mean) / sqrt(var + epsilon) * scale + bias."""
    factor = jax.lax.rsqrt(var + epsilon)
    if scale is not None:
        factor = factor * scale
    y = (x - mean) * factor
    return y if bias is None else y + bias


def layer_norm(
    x: Array, shape: Sequence[int], epsilon: float, scale: Array | None, bias: Array | None
) -> Array:
    """Normalize the last axes, as many as `shape` has."""
    axes = tuple(range(-len(shape), 0))
    mean = x.mean(axes, keepdims=True)
    var = jnp.square(x - mean).mean(axes, keepdims=True)
    return normalize(x, mean, var, epsilon, scale, bias)


def rms_norm(x: Array, shape: Sequence[int], epsilon: float | None, scale: Array | None) -> Array:
    """Divide the last axes by their root mean square; an epsilon of None is the dtype's smallest step."""
    axes = tuple(range(-len(shape), 0))
    epsilon = float(jnp.finfo(x.dtype).eps) if epsilon is None else epsilon
    y = x * jax.lax.rsqrt(jnp.square(x).mean(axes, keepdims=True) + epsilon)
    return y if scale is None else y * scale
