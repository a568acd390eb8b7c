"""torch's multi-head attention, with its masks, added bias rows and added zero row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array


def as_bias(mask: Array | None, dtype: object) -> Array | None:
    """Return the mask as a bias of the scores: -inf where a boolean mask is True (torch: "not allowed").

    Flax's masks mean the opposite: True is "may attend". A mask of numbers is added unchanged.
    """
    if mask is None or mask.dtype != jnp.bool_:
        return mask
    return jnp.where(mask, -jnp.inf, 0).astype(dtype)


def causal_mask(queries: int, keys: int) -> Array:
    """Return a mask that is True above the diagonal, as in torch: no query attends to a later key."""
    return jnp.triu(jnp.ones((queries, keys), bool), k=1)


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    attn_mask: Array | None = None,
    key_padding_mask: Array | None = None,
    bias_k: Array | None = None,
    bias_v: Array | None = None,
    add_zero_attn: bool = False,
    need_weights: bool = True,
    drop: object = None,
) -> tuple[Array, Array]:
    """Compute scaled dot-product attention with all options of `torch.nn.MultiheadAttention`.

    Args:
        query: (batch, queries, heads, features of a head), projected; key and value likewise.
        key: (batch, keys, heads, features of a head).
        value: (batch, keys, heads, features of a head).
        attn_mask: (queries, keys) or (batch * heads, queries, keys); boolean with True for "not
            allowed", or numbers that are added.
        key_padding_mask: (batch, keys); boolean with True for "ignore", or numbers that are added.
        bias_k: (heads, features): an additional key for every sequence; bias_v is its value.
        bias_v: see bias_k.
        add_zero_attn: whether to append a key and value of zeros.
        need_weights: whether the caller reads the weights. If not, torch runs its fused attention.
        drop: a function applied to the weights (dropout), or None.

    Returns:
        (batch, queries, heads, features) and the weights (batch, heads, queries, keys). A row in
        which nothing is allowed is as in torch: NaN with `need_weights`, else 0.
    """
    batch, queries, heads, features = query.shape
    keys = key.shape[1]
    scores_bias = jnp.zeros((1, 1, 1, keys), query.dtype)
    mask = as_bias(attn_mask, query.dtype)
    if mask is not None:
        per_head = mask.ndim == 3
        shape = (batch, heads, queries, keys) if per_head else (1, 1, queries, keys)
        scores_bias = scores_bias + mask.reshape(shape)
    padding = as_bias(key_padding_mask, query.dtype)
    if padding is not None:
        scores_bias = scores_bias + padding[:, None, None, :]
    added = 0
    if bias_k is not None and bias_v is not None:
        key = jnp.concatenate([key, jnp.broadcast_to(bias_k, (batch, 1, heads, features))], 1)
        value = jnp.concatenate([value, jnp.broadcast_to(bias_v, (batch, 1, heads, features))], 1)
        added += 1
    if add_zero_attn:
        nothing = jnp.zeros((batch, 1, heads, features), query.dtype)
        key, value = jnp.concatenate([key, nothing], 1), jnp.concatenate([value, nothing], 1)
        added += 1
    # No mask hides the added rows.
    scores_bias = jnp.pad(scores_bias, [(0, 0), (0, 0), (0, 0), (0, added)])
    scores = jnp.einsum("bqhd,bkhd->bhqk", query / jnp.sqrt(features).astype(query.dtype), key)
    scores = scores + scores_bias
    if need_weights:
        weights = jax.nn.softmax(scores, axis=-1)
    else:
        sees = (scores > -jnp.inf).any(axis=-1, keepdims=True)
        scores = jnp.where(sees, scores, 0).astype(jnp.promote_types(scores.dtype, jnp.float32))
        weights = jnp.where(sees, jax.nn.softmax(scores, axis=-1), 0).astype(value.dtype)
    if drop is not None:
        weights = drop(weights)  # type: ignore[operator]
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value), weights


def batched(
    sequences: tuple[Array, Array, Array], padding: Array | None, *, batch_first: bool
) -> tuple[tuple[Array, Array, Array], Array | None, bool]:
    """Return query, key and value as (batch, length, features), and whether they had a batch."""
    had_batch = sequences[0].ndim == 3
    if not had_batch:
        query, key, value = (sequence[None] for sequence in sequences)
        return (query, key, value), None if padding is None else padding[None], False
    if not batch_first:
        query, key, value = (sequence.swapaxes(0, 1) for sequence in sequences)
        return (query, key, value), padding, True
    return sequences, padding, True


def unbatched(
    output: Array, weights: Array, *, had_batch: bool, batch_first: bool, average: bool
) -> tuple[Array, Array]:
    """Return output and weights in torch's arrangement."""
    if average:
        weights = weights.mean(1)
    if not had_batch:
        return output[0], weights[0]
    return output if batch_first else output.swapaxes(0, 1), weights
