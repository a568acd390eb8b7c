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


def clamp(
    x: jax.Array, low: jax.Array | float | None = None, high: jax.Array | float | None = None
) -> jax.Array:
    """`jnp.clip`, with torch's gradient of an element exactly at a bound: 1, not a half."""
    if low is not None:
        x = jnp.where(x >= low, x, jnp.maximum(x, low))  # NaN if either is
    if high is not None:
        x = jnp.where(x <= high, x, jnp.minimum(x, high))
    return x


def absolute(x: jax.Array) -> jax.Array:
    """`jnp.abs`, with torch's gradient at 0: 0, not 1."""
    return x * jnp.sign(x)


def safe_sqrt(x: jax.Array) -> jax.Array:
    """The square root, with torch's gradient of a norm or deviation that is 0: 0, not NaN."""
    zero = x == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x)))


def power(x: jax.Array | float, exponent: jax.Array) -> jax.Array:
    """`x ** exponent`, with torch's gradient where both are 0: 0, not NaN."""
    nothing = (x == 0) & (exponent == 0)
    return jnp.where(nothing, 1, jnp.where(nothing, 1, x) ** exponent)


def xlogy(x: jax.Array | float, y: jax.Array | float) -> jax.Array:
    """`x * log(y)`, 0 where x is 0; with torch's gradient where both are 0: 0, not minus infinity."""
    nothing = (x == 0) & (y <= 0)
    return jnp.where(nothing, 0, x * jnp.log(jnp.where(nothing, 1, y)))


def leaky_relu(x: jax.Array, slope: float) -> jax.Array:
    """`jax.nn.leaky_relu`, with torch's gradient at 0: the slope, not 1."""
    return jnp.where(x > 0, x, slope * x)


def hard_tanh(x: jax.Array, low: float, high: float) -> jax.Array:
    """`jnp.clip`, with torch's gradient of an element exactly at a bound: 0, not a half."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def safe_softmax(x: jax.Array, axis: int = -1) -> jax.Array:
    """The softmax; 0 where all is minus infinity."""
    nothing = jnp.all(x == -jnp.inf, axis=axis, keepdims=True)
    return jnp.where(nothing, 0.0, jax.nn.softmax(jnp.where(nothing, 0.0, x), axis=axis))
