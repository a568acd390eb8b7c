"""torch's weight norm and spectral norm of a weight, in any arrangement of its axes.

The shapes determine the axes of a norm: the norm runs over each axis of the weight where the factor
has size 1. Torch's original axis order is therefore not needed.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def weight_norm(direction: Array, scale: Array) -> Array:
    """Return scale * direction / |direction|.

    Args:
        direction: torch's original1, or weight_v.
        scale: torch's original0, or weight_g. It has the direction's rank, with size 1 on each axis
            that the norm sums over; or rank 0, for one norm of the whole weight.
    """
    return direction * (scale / _norm(direction, scale))


def spectral_norm(weight: Array, u: Array, v: Array) -> Array:
    """Return the weight divided by its largest singular value, as estimated by u and v.

    Args:
        weight: torch's original, or weight_orig.
        u: of the weight's rank, with size 1 except at the axis of the rows.
        v: of the weight's rank, with size 1 at the axis of the rows.
    """
    return weight / jnp.sum(u * weight * v)


def power_iteration(
    weight: Array, u: Array, v: Array, steps: int, epsilon: float, first: str = "u"
) -> tuple[Array, Array]:
    """Return improved u and v, as torch computes them before each forward pass in training.

    Args:
        weight: see `spectral_norm`, u and v too.
        u: the estimate so far.
        v: the estimate so far.
        steps: the number of iterations.
        epsilon: the smallest norm to divide by.
        first: the vector updated first: "u" (`torch.nn.utils.parametrizations`) or "v" (the older
            `torch.nn.utils.spectral_norm`).
    """
    for _ in range(steps):
        if first == "v":
            v = _unit(jnp.sum(weight * u, axis=_ones(v, weight), keepdims=True), epsilon)
        u = _unit(jnp.sum(weight * v, axis=_ones(u, weight), keepdims=True), epsilon)
        if first == "u":
            v = _unit(jnp.sum(weight * u, axis=_ones(v, weight), keepdims=True), epsilon)
    return u, v


def _norm(direction: Array, scale: Array) -> Array:
    if scale.ndim == 0:
        return jnp.sqrt(jnp.sum(jnp.square(direction)))
    axes = _ones(scale, direction)
    return jnp.sqrt(jnp.sum(jnp.square(direction), axis=axes, keepdims=True))


def _ones(factor: Array, weight: Array) -> tuple[int, ...]:
    """Return the axes that the factor does not have."""
    sides = zip(factor.shape, weight.shape, strict=True)
    return tuple(axis for axis, (side, full) in enumerate(sides) if side == 1 and full != 1)


def _unit(x: Array, epsilon: float) -> Array:
    return x / jnp.maximum(jnp.sqrt(jnp.sum(jnp.square(x))), epsilon)
