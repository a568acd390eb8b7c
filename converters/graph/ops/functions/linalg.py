"""Linear algebra that jax.numpy lacks."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def log_determinant(x: jax.Array) -> jax.Array:
    """The logarithm of the determinant; NaN where that is negative."""
    sign, size = jnp.linalg.slogdet(x)
    return jnp.where(sign < 0, jnp.nan, size)
