"""Loss of a linear model."""

import jax.numpy as jnp


def loss_of(weights: jnp.ndarray, rows: jnp.ndarray) -> jnp.ndarray:
    return jnp.mean((rows @ weights - rows.sum(1)) ** 2)
