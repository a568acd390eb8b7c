"""Source for ports: losses of classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp


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
