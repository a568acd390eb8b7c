"""Qwen3ForCausalLM in Flax, ported from transformers.models.qwen3.modeling_qwen3."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import Qwen3ForCausalLMConfig


def masked_attention(
    query: Array, key: Array, value: Array, mask: Array | None, **options: Any
) -> Array:
    """Attention with an optional boolean mask; a query that may see no key gets 0."""
    if mask is None:
        return jax.nn.dot_product_attention(query, key, value, **options)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if options.pop("is_causal", False):
        mask = mask & jnp.tril(jnp.ones((query.shape[-3], key.shape[-3]), jnp.bool_))
    attended = jax.nn.dot_product_attention(query, key, value, mask=mask, **options)
    sees = mask.any(axis=-1).swapaxes(1, 2)[..., None]
    return jnp.where(sees.reshape(sees.shape[-query.ndim :]), attended, 0)


class Module(nn.Module, kw_only=True):
    """A module of this model.

    Attributes:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights that `init` makes.
        precision: precision of the matrix products in layers.
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

    def cast_param(self, name: str, init: Any, shape: tuple[int, ...]) -> Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(self.param(name, init, shape, self.param_dtype), self.dtype)


def rotate_half(x: Array) -> Array:
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return jnp.concatenate([-x2, x1], axis=-1)


def apply_rotary_pos_emb(q: Array, k: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Applies Rotary Position Embedding to the query and key tensors."""
    cos = cos[:, None]
    sin = sin[:, None]
    q_embed = q * cos + rotate_half(q) * sin
    k_embed = k * cos + rotate_half(k) * sin
    return q_embed, k_embed


def sdpa_attention_forward(
    query: Array, key: Array, value: Array, attention_mask: Array | None
) -> Array:
    return masked_attention(
        query.swapaxes(1, 2),
        key.swapaxes(1, 2),
        value.swapaxes(1, 2),
        attention_mask,
        is_causal=True,
    )


class Qwen3RotaryEmbedding(nn.Module):
    config: Qwen3ForCausalLMConfig

    def setup(self) -> None:
        self.inv_freq = 1.0 / self.config.rope_theta ** (
            jnp.arange(0, self.config.head_dim, 2) / self.config.head_dim
        )

    def __call__(self, position_ids: Array, dtype: DTypeLike) -> tuple[Array, Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.inv_freq
        emb = jnp.concatenate([freqs, freqs], axis=-1)
        cos = jnp.cos(emb)
        sin = jnp.sin(emb)
        return cos.astype(dtype), sin.astype(dtype)


class Qwen3RMSNorm(Module):
    config: Qwen3ForCausalLMConfig
    hidden_size: int

    def setup(self) -> None:
        self.weight = self.cast_param("weight", nn.initializers.ones, (self.hidden_size,))

    def __call__(self, hidden_states: Array) -> Array:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.astype(jnp.float32)
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.rms_norm_eps)
        return self.weight * hidden_states.astype(input_dtype)


class Qwen3Attention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: Qwen3ForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)
        self.q_proj = dense(self.config.num_attention_heads * self.config.head_dim)
        self.k_proj = dense(self.config.num_key_value_heads * self.config.head_dim)
        self.v_proj = dense(self.config.num_key_value_heads * self.config.head_dim)
        self.o_proj = dense(self.config.hidden_size)
        self.q_norm = Qwen3RMSNorm(self.config, hidden_size=self.config.head_dim, **self.numerics)
        self.k_norm = Qwen3RMSNorm(self.config, hidden_size=self.config.head_dim, **self.numerics)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array | None
    ) -> Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.config.head_dim)
        query_states = self.q_norm(self.q_proj(hidden_states).reshape(hidden_shape)).swapaxes(1, 2)
        key_states = self.k_norm(self.k_proj(hidden_states).reshape(hidden_shape)).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        attn_output = sdpa_attention_forward(query_states, key_states, value_states, attention_mask)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class Qwen3MLP(Module):
    config: Qwen3ForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)
        self.gate_proj = dense(self.config.intermediate_size)
        self.up_proj = dense(self.config.intermediate_size)
        self.down_proj = dense(self.config.hidden_size)

    def __call__(self, x: Array) -> Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Qwen3DecoderLayer(Module):
    config: Qwen3ForCausalLMConfig

    def setup(self) -> None:
        self.self_attn = Qwen3Attention(self.config, **self.numerics)
        self.mlp = Qwen3MLP(self.config, **self.numerics)
        norm: Any = partial(Qwen3RMSNorm, hidden_size=self.config.hidden_size, **self.numerics)
        self.input_layernorm = norm(self.config)
        self.post_attention_layernorm = norm(self.config)

    def __call__(
        self, hidden_states: Array, attention_mask: Array | None, cos: Array, sin: Array
    ) -> Array:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        # Self Attention
        hidden_states = self.self_attn(hidden_states, cos, sin, attention_mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class Qwen3Model(Module):
    """The bare Qwen3 Model outputting raw hidden-states without any specific head on top."""

    config: Qwen3ForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.embed_tokens = nn.Embed(
            self.config.vocab_size, self.config.hidden_size, embedding_init=init, **self.dtypes
        )
        self.layers = [
            Qwen3DecoderLayer(self.config, **self.numerics)
            for _ in range(self.config.num_hidden_layers)
        ]
        self.norm = Qwen3RMSNorm(self.config, hidden_size=self.config.hidden_size, **self.numerics)
        self.rotary_emb = Qwen3RotaryEmbedding(self.config)

    def __call__(
        self, input_ids: Array, attention_mask: Array | None, position_ids: Array | None
    ) -> Array:
        inputs_embeds = self.embed_tokens(input_ids)
        padding_mask = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None]
        cos, sin = self.rotary_emb(position_ids, inputs_embeds.dtype)
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states, padding_mask, cos, sin)
        return self.norm(hidden_states)


class Qwen3ForCausalLM(Module):
    """The Qwen3 Model for causal language modeling."""

    config: Qwen3ForCausalLMConfig

    def setup(self) -> None:
        self.model = Qwen3Model(self.config, **self.numerics)
        init = nn.initializers.normal(self.config.initializer_range)
        self.lm_head = nn.Dense(
            self.config.vocab_size, use_bias=False, kernel_init=init, **self.numerics
        )

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        position_ids: Array | None = None,
    ) -> dict[str, Array]:
        outputs = self.model(input_ids, attention_mask, position_ids)
        logits = self.lm_head(outputs)
        return {"logits": logits}
