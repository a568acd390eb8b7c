"""torch's adaptive softmax: frequent classes in a head, rare classes in separate clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array


def adaptive_log_prob(
    head: Array, tails: Sequence[Callable[[], Array]], cutoffs: Sequence[int]
) -> Array:
    """Return log probabilities of all classes, (batch, classes).

    Args:
        head: scores of the frequent classes, then of the clusters.
        tails: for each cluster the function that computes its classes' scores.
        cutoffs: the first class of each cluster.
    """
    log_head = jax.nn.log_softmax(head, axis=-1)
    frequent = cutoffs[0]
    parts = [log_head[:, :frequent]]
    for number, scores in enumerate(tails):
        cluster = log_head[:, frequent + number, None]
        parts.append(cluster + jax.nn.log_softmax(scores(), axis=-1))
    return jnp.concatenate(parts, axis=-1)


def target_log_prob(log_prob: Array, target: Array) -> tuple[Array, Array]:
    """Return the targets' log probabilities and torch's loss, the negative mean of them."""
    output = jnp.take_along_axis(log_prob, target[:, None], axis=-1)[:, 0]
    return output, -output.mean()
