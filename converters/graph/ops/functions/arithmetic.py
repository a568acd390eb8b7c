"""Source for ports: arithmetic and activations that jax.numpy and jax.nn lack."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def divide_towards_zero(x: jax.Array, y: jax.Array | int) -> jax.Array:
    """The quotient of integers without its fraction: -7 / 2 is -3."""
    return jnp.sign(x) * jnp.sign(y) * (jnp.abs(x) // jnp.abs(y))


def integer_power(x: jax.Array | int, exponent: jax.Array) -> jax.Array:
    """`x ** exponent` of integers without its fraction: 2 ** -1 is 0, (-1) ** -1 is -1."""
    power = x ** jnp.abs(exponent)
    return jnp.where((exponent < 0) & (jnp.abs(x) != 1), 0, power)


def safe_softmax(x: jax.Array, axis: int = -1) -> jax.Array:
    """The softmax; 0 where all is minus infinity."""
    nothing = jnp.all(x == -jnp.inf, axis=axis, keepdims=True)
    return jnp.where(nothing, 0.0, jax.nn.softmax(jnp.where(nothing, 0.0, x), axis=axis))
