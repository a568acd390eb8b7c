"""Gemma3ForCausalLM in Flax, ported from transformers.models.gemma3.modeling_gemma3."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import Gemma3ForCausalLMConfig


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


def zero_row(initializer: nn.initializers.Initializer, row: int) -> nn.initializers.Initializer:
    """An initializer of an embedding, with zeros for the token that pads."""
    return lambda key, shape, dtype: initializer(key, shape, dtype).at[row].set(0)


def demand_size(holds: bool, what: str) -> None:
    """Raise ValueError for input sizes that this port does not support."""
    if not holds:
        raise ValueError(f"this port takes {what}; see 'Free axes' in its README")


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
    def numerics(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype, "precision": self.precision}

    def cast_param(self, name: str, init: Any, shape: tuple[int, ...]) -> Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(self.param(name, init, shape, self.param_dtype), self.dtype)


def norm(x: Array, eps: float) -> Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + eps)


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


def sdpa_attention_forward(query: Array, key: Array, value: Array, attention_mask: Array) -> Array:
    return masked_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2), attention_mask
    )


def non_vmap_expansion_sdpa(q_indices: Array) -> tuple[Array, Array]:
    """Used to broadcast our mask_functions over the all 4 dimensions (b_idx, h_idx, q_idx,
    kv_idx) of the inputs."""
    q_indices = q_indices[None, None]
    q_indices_2 = q_indices[..., None]
    kv_indices = q_indices[:, :, None]
    return q_indices_2, kv_indices


def create_causal_mask(length: int, batch_size: int) -> tuple[Array, Array]:
    """Create a standard causal mask based on the attention implementation used (stored in the
    config)."""
    q_arange = jnp.arange(length)
    # Apply mask function element-wise through broadcasting
    attention_mask_0, attention_mask_1 = non_vmap_expansion_sdpa(q_arange)
    result = attention_mask_1 <= attention_mask_0
    # Expand the mask to match batch size and query length if they weren't used in the mask
    # function
    attention_mask = jnp.broadcast_to(result, (batch_size, 1, result.shape[2], result.shape[2]))
    return result, attention_mask


def inner_mask(attention_mask_0: Array, attention_mask_1: Array) -> Array:
    return attention_mask_1 > attention_mask_0 - 5


def and_mask(attention_mask_0: Array, attention_mask_1: Array) -> Array:
    return inner_mask(attention_mask_0, attention_mask_1) & (attention_mask_1 <= attention_mask_0)


def create_sliding_window_causal_mask(length: int, batch_size: int) -> tuple[Array, Array]:
    """Create a sliding window causal mask based on the attention implementation used (stored
    in the config)."""
    q_arange = jnp.arange(length)
    # Apply mask function element-wise through broadcasting
    attention_mask_0, attention_mask_1 = non_vmap_expansion_sdpa(q_arange)
    attention_mask = and_mask(attention_mask_0, attention_mask_1)
    # Expand the mask to match batch size and query length if they weren't used in the mask
    # function
    attention_mask_2 = jnp.broadcast_to(
        attention_mask, (batch_size, 1, attention_mask.shape[2], attention_mask.shape[2])
    )
    return attention_mask, attention_mask_2


class Gemma3TextScaledWordEmbedding(Module):
    """This module overrides nn.Embeddings' forward by multiplying with embeddings scale."""

    config: Gemma3ForCausalLMConfig

    def setup(self) -> None:
        init = zero_row(nn.initializers.normal(self.config.initializer_range), 0)
        self.embedding = self.cast_param(
            "embedding", init, (self.config.vocab_size, self.config.hidden_size)
        )
        self.embed_scale = jnp.full((), self.config.hidden_size**0.5, jnp.float32)

    def __call__(self, input_ids: Array) -> Array:
        hidden = jnp.where(
            (input_ids == 0)[..., None],
            jax.lax.stop_gradient(jnp.take(self.embedding, input_ids, axis=0)),
            jnp.take(self.embedding, input_ids, axis=0),
        )
        return hidden * self.embed_scale.astype(hidden.dtype)


class Gemma3RotaryEmbedding(nn.Module):
    config: Gemma3ForCausalLMConfig

    def setup(self) -> None:
        self.sliding_attention_inv_freq = 1.0 / self.config.sliding_attention_rope_theta ** (
            jnp.arange(0, self.config.head_dim, 2) / self.config.head_dim
        )
        self.full_attention_inv_freq = 1.0 / self.config.full_attention_rope_theta ** (
            jnp.arange(0, self.config.head_dim, 2) / self.config.head_dim
        )

    def __call__(self, position_ids: Array, dtype: DTypeLike) -> tuple[Array, Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.sliding_attention_inv_freq
        emb = jnp.concatenate([freqs, freqs], axis=-1)
        cos = jnp.cos(emb)
        sin = jnp.sin(emb)
        return cos.astype(dtype), sin.astype(dtype)

    def call_1(self, position_ids: Array, dtype: DTypeLike) -> tuple[Array, Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.full_attention_inv_freq
        emb = jnp.concatenate([freqs, freqs], axis=-1)
        cos = jnp.cos(emb)
        sin = jnp.sin(emb)
        return cos.astype(dtype), sin.astype(dtype)


class Gemma3RMSNorm(Module):
    config: Gemma3ForCausalLMConfig
    dim: int

    def setup(self) -> None:
        self.weight = self.param("weight", nn.initializers.zeros, (self.dim,), self.param_dtype)

    def __call__(self, x: Array) -> Array:
        output = norm(x.astype(jnp.float32), self.config.rms_norm_eps)
        # Llama does x.to(float16) * w whilst Gemma3 is (x * w).to(float16)
        # See https://github.com/huggingface/transformers/pull/29402
        output = output * (self.weight.astype(jnp.float32) + 1.0)
        return output.astype(x.dtype)


class Gemma3Attention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: Gemma3ForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)
        self.q_proj = dense(self.config.num_attention_heads * self.config.head_dim)
        self.k_proj = dense(self.config.num_key_value_heads * self.config.head_dim)
        self.v_proj = dense(self.config.num_key_value_heads * self.config.head_dim)
        self.o_proj = dense(self.config.hidden_size)
        self.q_norm = Gemma3RMSNorm(self.config, dim=self.config.head_dim, **self.numerics)
        self.k_norm = Gemma3RMSNorm(self.config, dim=self.config.head_dim, **self.numerics)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array
    ) -> Array:
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
    config: Gemma3ForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)
        self.gate_proj = dense(self.config.intermediate_size)
        self.up_proj = dense(self.config.intermediate_size)
        self.down_proj = dense(self.config.hidden_size)

    def __call__(self, x: Array) -> Array:
        return self.down_proj(jax.nn.gelu(self.gate_proj(x), approximate=True) * self.up_proj(x))


class Gemma3DecoderLayer(Module):
    config: Gemma3ForCausalLMConfig

    def setup(self) -> None:
        self.self_attn = Gemma3Attention(self.config, **self.numerics)
        self.mlp = Gemma3MLP(self.config, **self.numerics)
        norm_2: Any = partial(Gemma3RMSNorm, dim=self.config.hidden_size, **self.numerics)
        self.input_layernorm = norm_2(self.config)
        self.post_attention_layernorm = norm_2(self.config)
        self.pre_feedforward_layernorm = norm_2(self.config)
        self.post_feedforward_layernorm = norm_2(self.config)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array
    ) -> Array:
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

    config: Gemma3ForCausalLMConfig

    def setup(self) -> None:
        self.embed_tokens = Gemma3TextScaledWordEmbedding(self.config, **self.numerics)
        self.layers = [Gemma3DecoderLayer(self.config, **self.numerics) for _ in range(4)]
        self.norm = Gemma3RMSNorm(self.config, dim=self.config.hidden_size, **self.numerics)
        self.rotary_emb = Gemma3RotaryEmbedding(self.config)

    def __call__(
        self, input_ids: Array, attention_mask: Array | None, position_ids: Array | None
    ) -> Array:
        inputs_embeds = self.embed_tokens(input_ids)
        # Create the masks
        causal_mask_mapping_0, causal_mask_mapping_1 = create_causal_mask(
            input_ids.shape[1], input_ids.shape[0]
        )
        padding_mask = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        causal_mask_mapping_0_2, causal_mask_mapping_1_2 = create_sliding_window_causal_mask(
            input_ids.shape[1], input_ids.shape[0]
        )
        padding_mask_2 = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None]
        cos, sin = self.rotary_emb(position_ids, inputs_embeds.dtype)
        cos_2, sin_2 = self.rotary_emb.call_1(position_ids, inputs_embeds.dtype)
        result = (
            causal_mask_mapping_1_2
            if padding_mask_2 is None
            else causal_mask_mapping_0_2 & padding_mask_2
        )
        hidden_states = self.layers[0](inputs_embeds, cos, sin, result)
        hidden_states = self.layers[1](hidden_states, cos, sin, result)
        result_2 = (
            causal_mask_mapping_1 if padding_mask is None else causal_mask_mapping_0 & padding_mask
        )
        hidden_states = self.layers[2](hidden_states, cos_2, sin_2, result_2)
        hidden_states = self.layers[3](hidden_states, cos, sin, result)
        return self.norm(hidden_states)


class Gemma3ForCausalLM(Module):
    """The Gemma3 Model for causal language modeling."""

    config: Gemma3ForCausalLMConfig

    def setup(self) -> None:
        self.model = Gemma3TextModel(self.config, **self.numerics)

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        position_ids: Array | None = None,
    ) -> dict[str, Array]:
        demand_size(input_ids.shape[1] >= 4, "axis 1 of input_ids: from 4")
        # decoder outputs consists of (dec_features, layer_state, dec_hidden, dec_attn)
        outputs = self.model(input_ids, attention_mask, position_ids)
        logits = outputs @ self.model.embed_tokens.embedding.T
        return {"logits": logits}
