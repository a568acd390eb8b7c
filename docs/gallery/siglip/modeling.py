"""SiglipVisionModel in Flax, ported from transformers.models.siglip.modeling_siglip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from .config import SiglipVisionConfig


def batched(
    sequences: tuple[Array, Array, Array], padding: Array | None, *, batch_first: bool
) -> tuple[tuple[Array, Array, Array], Array | None, bool]:
    """Query, key and value as (batch, length, features), and whether they had a batch."""
    had_batch = sequences[0].ndim == 3
    if not had_batch:
        query, key, value = (sequence[None] for sequence in sequences)
        return (query, key, value), None if padding is None else padding[None], False
    if not batch_first:
        query, key, value = (sequence.swapaxes(0, 1) for sequence in sequences)
        return (query, key, value), padding, True
    return sequences, padding, True


def as_bias(mask: Array | None, dtype: object) -> Array | None:
    """What a mask adds to the scores: -inf where a boolean one is True (torch: "not allowed").

    Flax's masks mean the opposite: True is "may attend". A mask of numbers is added as it is.
    """
    if mask is None or mask.dtype != jnp.bool_:
        return mask
    return jnp.where(mask, -jnp.inf, 0).astype(dtype)


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
    drop: object = None,
) -> tuple[Array, Array]:
    """Scaled dot-product attention with everything that `torch.nn.MultiheadAttention` adds to it.

    Args:
        query: (batch, queries, heads, features of a head), projected; key and value likewise.
        key: (batch, keys, heads, features of a head).
        value: (batch, keys, heads, features of a head).
        attn_mask: (queries, keys) or (batch * heads, queries, keys); boolean with True for "not
            allowed", or numbers that are added.
        key_padding_mask: (batch, keys); boolean with True for "ignore", or numbers that are added.
        bias_k: (heads, features): one more key for every sequence; bias_v its value.
        bias_v: see bias_k.
        add_zero_attn: whether one more key and value of zeros follows.
        drop: what is done to the weights (dropout), or None.

    Returns:
        (batch, queries, heads, features) and the weights (batch, heads, queries, keys). A row in
        which nothing is allowed is NaN, as in torch.
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
    # No mask hides the rows that were added.
    scores_bias = jnp.pad(scores_bias, [(0, 0), (0, 0), (0, 0), (0, added)])
    scores = jnp.einsum("bqhd,bkhd->bhqk", query / jnp.sqrt(features).astype(query.dtype), key)
    weights = jax.nn.softmax(scores + scores_bias, axis=-1)
    if drop is not None:
        weights = drop(weights)  # type: ignore[operator]
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value), weights


def unbatched(
    output: Array, weights: Array, *, had_batch: bool, batch_first: bool, average: bool
) -> tuple[Array, Array]:
    """Output and weights in the arrangement in which torch gives them."""
    if average:
        weights = weights.mean(1)
    if not had_batch:
        return output[0], weights[0]
    return output if batch_first else output.swapaxes(0, 1), weights


def causal_mask(queries: int, keys: int) -> Array:
    """True above the diagonal, in torch's meaning: no query sees a later key."""
    return jnp.triu(jnp.ones((queries, keys), bool), k=1)


class MultiheadAttention(nn.Module):
    """torch's attention with torch's masks; weights named and shaped as in Flax's own.

    `query`, `key` and `value` have kernels (in, heads, features), `out` (heads, features, embed_dim),
    so that Flax's `MultiHeadDotProductAttention` takes the same weights where neither bias_k nor
    bias_v is there.

    Attributes:
        embed_dim: features of the query and of the output.
        num_heads: a divisor of embed_dim.
        dropout: of the attention weights.
        bias: whether the four projections have biases.
        add_bias_kv: whether a learned key and value (`bias_k`, `bias_v`) follow the others.
        add_zero_attn: whether a key and value of zeros follow.
        batch_first: inputs (batch, length, features); else (length, batch, features), as torch's.
    """

    embed_dim: int
    num_heads: int
    dropout: float = 0.0
    bias: bool = True
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    batch_first: bool = False

    @nn.compact
    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        key_padding_mask: Array | None = None,
        need_weights: bool = True,
        attn_mask: Array | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        deterministic: bool = True,
    ) -> tuple[Array, Array | None]:
        """Output and attention weights (None unless needed), as torch gives them.

        Boolean masks have torch's polarity: True is "not allowed" (Flax's: "allowed"). `is_causal`
        without `attn_mask` makes the causal mask; torch wants both.
        """
        heads, features = self.num_heads, self.embed_dim // self.num_heads
        (query, key, value), key_padding_mask, had_batch = batched(
            (query, key, value), key_padding_mask, batch_first=self.batch_first
        )
        if is_causal and attn_mask is None:
            attn_mask = causal_mask(query.shape[1], key.shape[1])

        def project(name: str, x: Array) -> Array:
            layer = nn.DenseGeneral((heads, features), use_bias=self.bias, name=name)
            return layer(x)

        extra: dict[str, Array | None] = {"bias_k": None, "bias_v": None}
        if self.add_bias_kv:
            normal = nn.initializers.xavier_normal()
            extra = {name: self.param(name, normal, (heads, features)) for name in extra}
        output, weights = attention(
            project("query", query),
            project("key", key),
            project("value", value),
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            bias_k=extra["bias_k"],
            bias_v=extra["bias_v"],
            add_zero_attn=self.add_zero_attn,
            drop=nn.Dropout(self.dropout, deterministic=deterministic) if self.dropout else None,
        )
        out = nn.DenseGeneral(self.embed_dim, axis=(-2, -1), use_bias=self.bias, name="out")
        output, weights = unbatched(
            out(output),
            weights,
            had_batch=had_batch,
            batch_first=self.batch_first,
            average=average_attn_weights,
        )
        return output, weights if need_weights else None


def sdpa_attention_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2)
    )


class SiglipVisionEmbeddings(nn.Module):
    config: SiglipVisionConfig

    def setup(self) -> None:
        self.position_ids = jnp.arange(16, dtype=jnp.int32)[None]
        self.patch_embedding = nn.Conv(
            self.config.hidden_size,
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
        )
        self.position_embedding = nn.Embed(
            (self.config.image_size // self.config.patch_size) ** 2, self.config.hidden_size
        )

    def __call__(self, pixel_values: jax.Array) -> jax.Array:
        patch_embeds = self.patch_embedding(jnp.moveaxis(pixel_values, 1, -1))
        embeddings = patch_embeds.reshape(patch_embeds.shape[0], -1, patch_embeds.shape[-1])
        return embeddings + self.position_embedding(self.position_ids)


class SiglipAttention(nn.Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: SiglipVisionConfig

    def setup(self) -> None:
        self.k_proj = nn.Dense(self.config.hidden_size)
        self.v_proj = nn.Dense(self.config.hidden_size)
        self.q_proj = nn.Dense(self.config.hidden_size)
        self.out_proj = nn.Dense(self.config.hidden_size)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        queries = (
            self.q_proj(hidden_states)
            .reshape(
                *hidden_states.shape[:2],
                -1,
                self.config.hidden_size // self.config.num_attention_heads,
            )
            .swapaxes(1, 2)
        )
        keys = (
            self.k_proj(hidden_states)
            .reshape(
                *hidden_states.shape[:2],
                -1,
                self.config.hidden_size // self.config.num_attention_heads,
            )
            .swapaxes(1, 2)
        )
        values = (
            self.v_proj(hidden_states)
            .reshape(
                *hidden_states.shape[:2],
                -1,
                self.config.hidden_size // self.config.num_attention_heads,
            )
            .swapaxes(1, 2)
        )
        attn_output = sdpa_attention_forward(queries, keys, values)
        attn_output = attn_output.reshape(attn_output.shape[0], hidden_states.shape[1], -1)
        return self.out_proj(attn_output)


class SiglipMLP(nn.Module):
    config: SiglipVisionConfig

    def setup(self) -> None:
        self.fc1 = nn.Dense(self.config.intermediate_size)
        self.fc2 = nn.Dense(self.config.hidden_size)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        hidden_states = self.fc1(hidden_states)
        hidden_states = jax.nn.gelu(hidden_states, approximate=True)
        return self.fc2(hidden_states)


class SiglipEncoderLayer(nn.Module):
    config: SiglipVisionConfig

    def setup(self) -> None:
        self.layer_norm1 = nn.LayerNorm(epsilon=self.config.layer_norm_eps, use_fast_variance=False)
        self.self_attn = SiglipAttention(self.config)
        self.layer_norm2 = nn.LayerNorm(epsilon=self.config.layer_norm_eps, use_fast_variance=False)
        self.mlp = SiglipMLP(self.config)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        residual = hidden_states
        hidden_states = self.layer_norm1(hidden_states)
        hidden_states = self.self_attn(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.layer_norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class SiglipMultiheadAttentionPoolingHead(nn.Module):
    """Multihead Attention Pooling."""

    config: SiglipVisionConfig

    def setup(self) -> None:
        self.probe = self.param(
            "probe", nn.initializers.normal(0.02), (1, 1, self.config.hidden_size)
        )
        self.attention = MultiheadAttention(embed_dim=32, num_heads=4, batch_first=True)
        self.layernorm = nn.LayerNorm(epsilon=self.config.layer_norm_eps, use_fast_variance=False)
        self.mlp = SiglipMLP(self.config)

    def __call__(self, hidden_state: jax.Array) -> jax.Array:
        probe = jnp.tile(self.probe, (hidden_state.shape[0], 1, 1))
        hidden_state_0, _ = self.attention(probe, key=hidden_state, value=hidden_state)
        hidden_state = self.layernorm(hidden_state_0)
        hidden_state = hidden_state_0 + self.mlp(hidden_state)
        return hidden_state[:, 0]


class SiglipEncoder(nn.Module):
    """Transformer encoder consisting of `config.num_hidden_layers` self attention layers."""

    config: SiglipVisionConfig

    def setup(self) -> None:
        self.layers = [
            SiglipEncoderLayer(self.config) for _ in range(self.config.num_hidden_layers)
        ]

    def __call__(self, inputs_embeds: jax.Array) -> jax.Array:
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class SiglipVisionModel(nn.Module):
    """The vision model from SigLIP without any head or projection on top."""

    config: SiglipVisionConfig

    def setup(self) -> None:
        self.embeddings = SiglipVisionEmbeddings(self.config)
        self.encoder = SiglipEncoder(self.config)
        self.post_layernorm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False
        )
        self.head = SiglipMultiheadAttentionPoolingHead(self.config)

    def __call__(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        hidden_states = self.embeddings(pixel_values)
        encoder_outputs = self.encoder(hidden_states)
        last_hidden_state = self.post_layernorm(encoder_outputs)
        pooler_output = self.head(last_hidden_state)
        return {"last_hidden_state": last_hidden_state, "pooler_output": pooler_output}
