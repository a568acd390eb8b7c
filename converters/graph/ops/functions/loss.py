"""Source for ports: losses of classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def binary_cross_entropy(probability: jax.Array, target: jax.Array) -> jax.Array:
    """The binary cross entropy of probabilities, with the limits that torch has at 0 and 1.

    A logarithm is at least -100, and no variance `p * (1 - p)` that divides a gradient is below 1e-12.
    """
    ends = probability * (1 - probability) < 1e-12
    inside = jnp.where(ends, 0.5, probability)
    loss = -(target * jnp.log(inside) + (1 - target) * jnp.log(1 - inside))
    fixed = jax.lax.stop_gradient(probability)
    yes, no = (jnp.maximum(jnp.log(p), -100) for p in (fixed, 1 - fixed))
    slope = (fixed - jax.lax.stop_gradient(target)) / 1e-12
    at_ends = -(target * yes + (1 - target) * no) + slope * (probability - fixed)
    return jnp.where(ends, at_ends, loss)


def right_class_loss(
    logs: jax.Array,
    target: jax.Array,
    reduction: str | None = "mean",
    ignore: int = -100,
    smoothing: float = 0.0,
) -> jax.Array:
    """Minus the logarithm (axis 1) of the right class; examples of the class `ignore` do not count."""
    counts = target != ignore
    chosen = jnp.where(counts, target, 0)[:, None]
    loss = -jnp.take_along_axis(logs, chosen, axis=1).squeeze(1)
    if smoothing:
        loss = (1 - smoothing) * loss - smoothing * logs.mean(axis=1)
    loss = jnp.where(counts, loss, 0.0)
    if reduction is None:
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counts.sum()


def cross_entropy(
    logits: jax.Array,
    target: jax.Array,
    reduction: str | None = "mean",
    ignore: int = -100,
    smoothing: float = 0.0,
) -> jax.Array:
    """The cross entropy of logits (axis 1) and the right classes."""
    logs = jax.nn.log_softmax(logits, axis=1)
    return right_class_loss(logs, target, reduction, ignore, smoothing)
