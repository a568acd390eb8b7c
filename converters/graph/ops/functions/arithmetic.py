"""Arithmetic that jax.numpy lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def divide_towards_zero(x: jax.Array, y: jax.Array | int) -> jax.Array:
    """The quotient of integers without its fraction: -7 / 2 is -3."""
    return jnp.sign(x) * jnp.sign(y) * (jnp.abs(x) // jnp.abs(y))
