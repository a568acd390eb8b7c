"""Gemma3TextModel in Flax, ported from transformers.models.gemma3.modeling_gemma3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

from .config import Gemma3TextConfig


def masked_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None, **options: Any
) -> jax.Array:
    """Attention with a mask of truths, if there is one; a query that may see no key gets 0."""
    if mask is None:
        return jax.nn.dot_product_attention(query, key, value, **options)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if options.pop("is_causal", False):
        mask = mask & jnp.tril(jnp.ones((query.shape[-3], key.shape[-3]), jnp.bool_))
    found = jax.nn.dot_product_attention(query, key, value, mask=mask, **options)
    sees = mask.any(axis=-1).swapaxes(1, 2)[..., None]
    return jnp.where(sees.reshape(sees.shape[-query.ndim :]), found, 0)


def zero_row(initializer: nn.initializers.Initializer, row: int) -> nn.initializers.Initializer:
    """An initialiser of an embedding, with zeros for the token that pads."""

    def init(key: Any, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return initializer(key, tuple(shape), dtype).at[row].set(0)

    return init


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: of the computation; None: that of the weights and inputs.
        param_dtype: of the weights that `init` makes.
        precision: of the products in layers.
    """

    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    precision: jax.lax.PrecisionLike = None

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def numerics(self) -> dict[str, Any]:
        return {**self.dtypes, "precision": self.precision}

    def cast_param(
        self, name: str, init: nn.initializers.Initializer, shape: tuple[int, ...]
    ) -> jax.Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(self.param(name, init, shape, self.param_dtype), self.dtype)


def norm(output: jax.Array, eps: float) -> jax.Array:
    return output * jax.lax.rsqrt(jnp.square(output).mean(axis=-1, keepdims=True) + eps)


def rotate_half(x: jax.Array) -> jax.Array:
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return jnp.concatenate([-x2, x1], axis=-1)


def apply_rotary_pos_emb(
    q: jax.Array, k: jax.Array, cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Applies Rotary Position Embedding to the query and key tensors."""
    cos = cos[:, None]
    sin = sin[:, None]
    q_embed = q * cos + rotate_half(q) * sin
    k_embed = k * cos + rotate_half(k) * sin
    return q_embed, k_embed


def sdpa_attention_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, attention_mask: jax.Array
) -> jax.Array:
    return masked_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2), attention_mask
    )


def non_vmap_expansion_sdpa(q_indices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Used to broadcast our mask_functions over the all 4 dimensions (b_idx, h_idx, q_idx,
    kv_idx) of the inputs."""
    q_indices = q_indices[None][:, None]
    q_indices_2 = q_indices[..., None]
    kv_indices = q_indices[..., None, :]
    return q_indices_2, kv_indices


def or_mask(attention_mask_1: jax.Array, attention_mask_0: jax.Array) -> jax.Array:
    return (attention_mask_1 <= attention_mask_0) | jnp.array(True, jnp.bool_)


def sdpa_mask(length: int, batch_size: int) -> jax.Array:
    """Create a 4D boolean mask of shape `(batch_size, 1, query_length, kv_length)` where a
    value of True indicates that the element should take part in the attention computation,
    and False that it should not."""
    # Apply mask function element-wise through broadcasting
    attention_mask_0, attention_mask_1 = non_vmap_expansion_sdpa(jnp.arange(length))
    # Expand the mask to match batch size and query length if they weren't used in the mask
    # function
    return jnp.broadcast_to(
        or_mask(attention_mask_1, attention_mask_0),
        (batch_size, 1, attention_mask_1.shape[3], attention_mask_1.shape[3]),
    )


def create_causal_mask(length: int, batch_size: int) -> jax.Array:
    """Create a standard causal mask based on the attention implementation used (stored in the
    config)."""
    # We now create the mask
    return sdpa_mask(length, batch_size)


def inner_mask(attention_mask_0: jax.Array, attention_mask_1: jax.Array) -> jax.Array:
    return attention_mask_1 > attention_mask_0 - 3


def and_mask(attention_mask_0: jax.Array, attention_mask_1: jax.Array) -> jax.Array:
    return inner_mask(attention_mask_0, attention_mask_1) & (attention_mask_1 <= attention_mask_0)


def inner_mask_2(attention_mask_0: jax.Array, attention_mask_1: jax.Array) -> jax.Array:
    """A token can attend to any other token if their absolute distance is within the
    (exclusive) sliding window size (distance < sliding_window)."""
    return jnp.abs(attention_mask_0 - attention_mask_1) < 3


def or_mask_2(attention_mask_0: jax.Array, attention_mask_1: jax.Array) -> jax.Array:
    return and_mask(attention_mask_0, attention_mask_1) | inner_mask_2(
        attention_mask_0, attention_mask_1
    )


def and_mask_2(attention_mask_0: jax.Array, attention_mask_1: jax.Array) -> jax.Array:
    return or_mask_2(attention_mask_0, attention_mask_1)


def sdpa_mask_2(length: int, batch_size: int) -> tuple[jax.Array, jax.Array]:
    """Create a 4D boolean mask of shape `(batch_size, 1, query_length, kv_length)` where a
    value of True indicates that the element should take part in the attention computation,
    and False that it should not."""
    q_arange = jnp.arange(length)
    # Apply mask function element-wise through broadcasting
    attention_mask_0, attention_mask_1 = non_vmap_expansion_sdpa(q_arange)
    attention_mask = and_mask_2(attention_mask_0, attention_mask_1)
    # Expand the mask to match batch size and query length if they weren't used in the mask
    # function
    attention_mask_2 = jnp.broadcast_to(
        attention_mask, (batch_size, 1, attention_mask.shape[2], attention_mask.shape[2])
    )
    return attention_mask, attention_mask_2


def create_sliding_window_causal_mask(length: int, batch_size: int) -> tuple[jax.Array, jax.Array]:
    """Create a sliding window causal mask based on the attention implementation used (stored
    in the config)."""
    # We now create the mask
    causal_mask_0, causal_mask_1 = sdpa_mask_2(length, batch_size)
    return causal_mask_0, causal_mask_1


class Gemma3TextScaledWordEmbedding(Module):
    """This module overrides nn.Embeddings' forward by multiplying with embeddings scale."""

    config: Gemma3TextConfig

    def setup(self) -> None:
        self.embedding = self.cast_param(
            "embedding",
            zero_row(nn.initializers.normal(self.config.initializer_range), 0),
            (self.config.vocab_size, self.config.hidden_size),
        )
        self.embed_scale = jnp.full((), self.config.hidden_size**0.5, jnp.float32)

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        hidden = jnp.take(self.embedding, input_ids, axis=0)
        return hidden * self.embed_scale.astype(hidden.dtype)


class Gemma3RotaryEmbedding(nn.Module):
    config: Gemma3TextConfig

    def setup(self) -> None:
        self.sliding_attention_inv_freq = 1.0 / self.config.sliding_attention_rope_theta ** (
            jnp.arange(0, self.config.head_dim, 2) / self.config.head_dim
        )
        self.full_attention_inv_freq = 1.0 / self.config.full_attention_rope_theta ** (
            jnp.arange(0, self.config.head_dim, 2) / self.config.head_dim
        )

    def __call__(self, position_ids: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.sliding_attention_inv_freq
        emb = jnp.concatenate([freqs, freqs], axis=-1)
        cos = jnp.cos(emb)
        sin = jnp.sin(emb)
        return cos.astype(dtype), sin.astype(dtype)

    def call_1(self, position_ids: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.full_attention_inv_freq
        emb = jnp.concatenate([freqs, freqs], axis=-1)
        cos = jnp.cos(emb)
        sin = jnp.sin(emb)
        return cos.astype(dtype), sin.astype(dtype)


class Gemma3RMSNorm(Module):
    config: Gemma3TextConfig
    dim: int

    def setup(self) -> None:
        self.weight = self.param("weight", nn.initializers.zeros, (self.dim,), self.param_dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        output = norm(x.astype(jnp.float32), self.config.rms_norm_eps)
        # Llama does x.to(float16) * w whilst Gemma3 is (x * w).to(float16)
        # See https://github.com/huggingface/transformers/pull/29402
        output = output * (self.weight.astype(jnp.float32) + 1.0)
        return output.astype(x.dtype)


class Gemma3Attention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: Gemma3TextConfig

    def setup(self) -> None:
        self.q_proj = nn.Dense(
            self.config.num_attention_heads * self.config.head_dim,
            use_bias=False,
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )
        self.k_proj = nn.Dense(
            self.config.num_key_value_heads * self.config.head_dim,
            use_bias=False,
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )
        self.v_proj = nn.Dense(
            self.config.num_key_value_heads * self.config.head_dim,
            use_bias=False,
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )
        self.o_proj = nn.Dense(
            self.config.hidden_size,
            use_bias=False,
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )
        self.q_norm = Gemma3RMSNorm(self.config, dim=self.config.head_dim, **self.numerics)
        self.k_norm = Gemma3RMSNorm(self.config, dim=self.config.head_dim, **self.numerics)

    def __call__(
        self, hidden_states: jax.Array, cos: jax.Array, sin: jax.Array, attention_mask: jax.Array
    ) -> jax.Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.config.head_dim)
        query_states = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        key_states = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        query_states = self.q_norm(query_states)
        key_states = self.k_norm(key_states)
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        attn_output = sdpa_attention_forward(query_states, key_states, value_states, attention_mask)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class Gemma3MLP(Module):
    config: Gemma3TextConfig

    def setup(self) -> None:
        self.gate_proj = nn.Dense(
            self.config.intermediate_size,
            use_bias=False,
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )
        self.up_proj = nn.Dense(
            self.config.intermediate_size,
            use_bias=False,
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )
        self.down_proj = nn.Dense(
            self.config.hidden_size,
            use_bias=False,
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(jax.nn.gelu(self.gate_proj(x), approximate=True) * self.up_proj(x))


class Gemma3DecoderLayer(Module):
    config: Gemma3TextConfig

    def setup(self) -> None:
        self.self_attn = Gemma3Attention(self.config, **self.numerics)
        self.mlp = Gemma3MLP(self.config, **self.numerics)
        self.input_layernorm = Gemma3RMSNorm(
            self.config, dim=self.config.hidden_size, **self.numerics
        )
        self.post_attention_layernorm = Gemma3RMSNorm(
            self.config, dim=self.config.hidden_size, **self.numerics
        )
        self.pre_feedforward_layernorm = Gemma3RMSNorm(
            self.config, dim=self.config.hidden_size, **self.numerics
        )
        self.post_feedforward_layernorm = Gemma3RMSNorm(
            self.config, dim=self.config.hidden_size, **self.numerics
        )

    def __call__(
        self, hidden_states: jax.Array, cos: jax.Array, sin: jax.Array, attention_mask: jax.Array
    ) -> jax.Array:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states, cos, sin, attention_mask)
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.pre_feedforward_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.post_feedforward_layernorm(hidden_states)
        return residual + hidden_states


class Gemma3TextModel(Module):
    """The bare Gemma3 Text Model outputting raw hidden-states without any specific head on
    top."""

    config: Gemma3TextConfig

    def setup(self) -> None:
        self.embed_tokens = Gemma3TextScaledWordEmbedding(self.config, **self.numerics)
        self.layers = [Gemma3DecoderLayer(self.config, **self.numerics) for _ in range(4)]
        self.norm = Gemma3RMSNorm(self.config, dim=self.config.hidden_size, **self.numerics)
        self.rotary_emb = Gemma3RotaryEmbedding(self.config)

    def __call__(
        self,
        input_ids: jax.Array,
        attention_mask: jax.Array | None = None,
        position_ids: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        inputs_embeds = self.embed_tokens(input_ids)
        result = (
            None
            if attention_mask is None
            else jnp.broadcast_to(
                attention_mask.astype(bool)[:, None, None],
                (input_ids.shape[0], 1, input_ids.shape[1], input_ids.shape[1]),
            )
        )
        # Create the masks
        causal_mask_mapping_0, causal_mask_mapping_1 = create_sliding_window_causal_mask(
            input_ids.shape[1], input_ids.shape[0]
        )
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None]
        cos, sin = self.rotary_emb(position_ids, inputs_embeds.dtype)
        cos_2, sin_2 = self.rotary_emb.call_1(position_ids, inputs_embeds.dtype)
        result_2 = (
            causal_mask_mapping_1
            if attention_mask is None
            else causal_mask_mapping_0 & attention_mask.astype(bool)[:, None, None]
        )
        hidden_states = self.layers[0](inputs_embeds, cos, sin, result_2)
        hidden_states = self.layers[1](hidden_states, cos, sin, result_2)
        if result is None:
            result = create_causal_mask(input_ids.shape[1], input_ids.shape[0])
        hidden_states = self.layers[2](hidden_states, cos_2, sin_2, result)
        hidden_states = self.layers[3](hidden_states, cos, sin, result_2)
        hidden_states = self.norm(hidden_states)
        return {"last_hidden_state": hidden_states}
