"""Attention where jax.nn.dot_product_attention gives something else than torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def masked_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, **options: Any
) -> jax.Array:
    """Attention with an optional boolean mask; a query that may see no key gets 0."""
    if mask is None:
        return jax.nn.dot_product_attention(query, key, value, **options)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if options.pop("is_causal", False):
        mask = mask & jnp.tril(jnp.ones((query.shape[-3], key.shape[-3]), jnp.bool_))
    attended = jax.nn.dot_product_attention(query, key, value, mask=mask, **options)
    sees = mask.any(axis=-1).swapaxes(1, 2)[..., None]
    return jnp.where(sees.reshape(sees.shape[-query.ndim :]), attended, 0)


def biased_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None, **options: Any
) -> jax.Array:
    """Attention with a bias on its scores, if any; a query whose biases are all minus infinity gets 0."""
    if bias is None:
        return jax.nn.dot_product_attention(query, key, value, **options)
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    sees = (bias > -jnp.inf).any(axis=-1, keepdims=True)
    attended = jax.nn.dot_product_attention(
        query, key, value, bias=jnp.where(sees, bias, 0), **options
    )
    sees = sees.swapaxes(1, 2)
    return jnp.where(sees.reshape(sees.shape[-query.ndim :]), attended, 0)


def general_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """Attention of (…, length, width), whatever the other axes and the width of the values are."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.matmul(query, key.mT, preferred_element_type=wide)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        past = jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_))
        mask = past if mask is None else mask & past
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == jnp.bool_ else scores + mask
    sees = (scores > -jnp.inf).any(axis=-1, keepdims=True)
    weights = jax.nn.softmax(jnp.where(sees, scores, 0), axis=-1)
    return jnp.where(sees, weights, 0).astype(value.dtype) @ value


def attention_log_sums(
    query: jax.Array, key: jax.Array, is_causal: bool = False, scale: float | None = None
) -> jax.Array:
    """The logarithm of the sum of each query's exponential scores."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_)), scores, -jnp.inf)
    return jax.nn.logsumexp(scores, axis=-1)


def dropout_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout: Callable[[jax.Array], jax.Array],
    mask: jax.Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """Attention of (…, heads, length, width) with a dropout of its weights; heads may share keys."""
    if query.ndim > 3 and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (jnp.repeat(array, groups, axis=-3) for array in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        past = jnp.tril(jnp.ones(scores.shape[-2:], jnp.bool_))
        mask = past if mask is None else mask & past
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == jnp.bool_ else scores + mask
    sees = (scores > -jnp.inf).any(axis=-1, keepdims=True)
    weights = jax.nn.softmax(jnp.where(sees, scores, 0).astype(jnp.float32), axis=-1)
    return dropout(jnp.where(sees, weights, 0).astype(value.dtype)) @ value
