"""LlamaForCausalLM in Flax NNX, ported from transformers.models.llama.modeling_llama."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from .config import LlamaForCausalLMConfig


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


class Module(nnx.Module):
    """A module of this model.

    Args:
        dtype: dtype of the computation, or None for that of the weights and inputs.
        param_dtype: dtype of the weights of a new model.
        precision: precision of the matrix products in layers.
    """

    def __init__(
        self,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        precision: jax.lax.PrecisionLike = None,
    ) -> None:
        self.dtype, self.param_dtype, self.precision = dtype, param_dtype, precision

    @property
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def cast(self, weight: nnx.Variable[Array]) -> Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(weight[...], self.dtype)


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


class LlamaRotaryEmbedding(nnx.Module):
    def __init__(self, config: LlamaForCausalLMConfig) -> None:
        self.config = config

    @property
    def inv_freq(self) -> Array:
        return 1.0 / self.config.rope_theta ** (
            jnp.arange(0, self.config.head_dim, 2) / self.config.head_dim
        )

    def __call__(self, position_ids: Array, dtype: DTypeLike) -> tuple[Array, Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.inv_freq
        emb = jnp.concatenate([freqs, freqs], axis=-1)
        cos = jnp.cos(emb)
        sin = jnp.sin(emb)
        return cos.astype(dtype), sin.astype(dtype)


class LlamaRMSNorm(Module):
    def __init__(self, config: LlamaForCausalLMConfig, **numerics: Any) -> None:
        super().__init__(**numerics)
        self.config = config
        self.weight = nnx.Param(jnp.ones((config.hidden_size,), self.param_dtype))

    def __call__(self, hidden_states: Array) -> Array:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.astype(jnp.float32)
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.rms_norm_eps)
        return self.cast(self.weight) * hidden_states.astype(input_dtype)


class LlamaAttention(nnx.Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    def __init__(self, config: LlamaForCausalLMConfig, *, rngs: nnx.Rngs, **numerics: Any) -> None:
        self.config = config
        init = nnx.initializers.normal(config.initializer_range)
        linear: Any = partial(nnx.Linear, use_bias=False, kernel_init=init, rngs=rngs, **numerics)
        self.q_proj = linear(config.hidden_size, config.num_attention_heads * config.head_dim)
        self.k_proj = linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.v_proj = linear(config.hidden_size, config.num_key_value_heads * config.head_dim)
        self.o_proj = linear(config.num_attention_heads * config.head_dim, config.hidden_size)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array | None
    ) -> Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.config.head_dim)
        query_states = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        key_states = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        attn_output = sdpa_attention_forward(query_states, key_states, value_states, attention_mask)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class LlamaMLP(nnx.Module):
    def __init__(self, config: LlamaForCausalLMConfig, *, rngs: nnx.Rngs, **numerics: Any) -> None:
        init = nnx.initializers.normal(config.initializer_range)
        linear: Any = partial(nnx.Linear, use_bias=False, kernel_init=init, rngs=rngs, **numerics)
        self.gate_proj = linear(config.hidden_size, config.intermediate_size)
        self.up_proj = linear(config.hidden_size, config.intermediate_size)
        self.down_proj = linear(config.intermediate_size, config.hidden_size)

    def __call__(self, x: Array) -> Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nnx.Module):
    def __init__(self, config: LlamaForCausalLMConfig, *, rngs: nnx.Rngs, **numerics: Any) -> None:
        self.self_attn = LlamaAttention(config, rngs=rngs, **numerics)
        self.mlp = LlamaMLP(config, rngs=rngs, **numerics)
        self.input_layernorm = LlamaRMSNorm(config, **numerics)
        self.post_attention_layernorm = LlamaRMSNorm(config, **numerics)

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


class LlamaModel(Module):
    """The bare Llama Model outputting raw hidden-states without any specific head on top."""

    def __init__(self, config: LlamaForCausalLMConfig, *, rngs: nnx.Rngs, **numerics: Any) -> None:
        super().__init__(**numerics)
        init = nnx.initializers.normal(config.initializer_range)
        self.embed_tokens = nnx.Embed(
            config.vocab_size, config.hidden_size, embedding_init=init, rngs=rngs, **self.dtypes
        )
        self.layers = nnx.List(
            [
                LlamaDecoderLayer(config, rngs=rngs, **numerics)
                for _ in range(config.num_hidden_layers)
            ]
        )
        self.norm = LlamaRMSNorm(config, **numerics)
        self.rotary_emb = LlamaRotaryEmbedding(config)

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


class LlamaForCausalLM(nnx.Module):
    """The Llama Model for causal language modeling."""

    def __init__(self, config: LlamaForCausalLMConfig, *, rngs: nnx.Rngs, **numerics: Any) -> None:
        self.config = config
        self.model = LlamaModel(config, rngs=rngs, **numerics)
        self.lm_head = nnx.Linear(
            config.hidden_size,
            config.vocab_size,
            use_bias=False,
            kernel_init=nnx.initializers.normal(config.initializer_range),
            rngs=rngs,
            **numerics,
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
