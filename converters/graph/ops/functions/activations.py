"""Activations that jax.nn lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def safe_softmax(x: jax.Array, axis: int = -1) -> jax.Array:
    """The softmax; 0 where all is minus infinity."""
    nothing = jnp.all(x == -jnp.inf, axis=axis, keepdims=True)
    return jnp.where(nothing, 0.0, jax.nn.softmax(jnp.where(nothing, 0.0, x), axis=axis))
