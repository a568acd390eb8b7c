"""MixtralForCausalLM in Flax, ported from transformers.models.mixtral.modeling_mixtral."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import MixtralForCausalLMConfig


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


def grouped_linear(gate_up_proj: Array, selected_hidden_states_g: Array, offsets: Array) -> Array:
    """Grouped linear layer supporting optional bias and transposed weights."""
    return jax.lax.ragged_dot(
        selected_hidden_states_g, gate_up_proj.swapaxes(-2, -1), jnp.diff(offsets, prepend=0)
    )


class MixtralRotaryEmbedding(nn.Module):
    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        self.inv_freq = 1.0 / self.config.rope_theta ** (
            jnp.arange(0, self.config.hidden_size // self.config.num_attention_heads, 2)
            / (self.config.hidden_size // self.config.num_attention_heads)
        )

    def __call__(self, position_ids: Array, dtype: DTypeLike) -> tuple[Array, Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.inv_freq
        emb = jnp.concatenate([freqs, freqs], axis=-1)
        cos = jnp.cos(emb)
        sin = jnp.sin(emb)
        return cos.astype(dtype), sin.astype(dtype)


class MixtralRMSNorm(Module):
    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        self.weight = self.cast_param("weight", nn.initializers.ones, (self.config.hidden_size,))

    def __call__(self, hidden_states: Array) -> Array:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.astype(jnp.float32)
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.rms_norm_eps)
        return self.weight * hidden_states.astype(input_dtype)


class MixtralTopKRouter(Module):
    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.weight = self.cast_param(
            "weight", init, (self.config.num_local_experts, self.config.hidden_size)
        )

    def __call__(self, hidden_states: Array) -> tuple[Array, Array]:
        # (seq_len, num_experts)
        router_logits = hidden_states @ self.weight.T
        router_probs = jax.nn.softmax(router_logits.astype(jnp.float32), axis=-1)
        # (seq_len, top_k)
        router_top_value, router_indices = jax.lax.top_k(
            router_probs, self.config.num_experts_per_tok
        )
        router_top_value = router_top_value / router_top_value.sum(axis=-1, keepdims=True)
        return router_top_value, router_indices


class MixtralExperts(Module):
    """Collection of expert weights stored as 3D tensors."""

    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        self.gate_up_proj = self.cast_param(
            "gate_up_proj",
            nn.initializers.normal(self.config.initializer_range),
            (
                self.config.num_local_experts,
                2 * self.config.intermediate_size,
                self.config.hidden_size,
            ),
        )
        self.down_proj = self.cast_param(
            "down_proj",
            nn.initializers.normal(self.config.initializer_range),
            (self.config.num_local_experts, self.config.hidden_size, self.config.intermediate_size),
        )

    def __call__(self, hidden_states: Array, top_k_index: Array, top_k_weights: Array) -> Array:
        # S is the number of selected tokens-experts pairs (S = num_tokens * num_top_k)
        # (S,)
        sample_weights = top_k_weights.reshape(-1)
        # (S,)
        expert_ids = top_k_index.reshape(-1)
        # Sort by expert for grouped processing
        expert_ids_g, perm = jnp.sort(expert_ids), jnp.argsort(expert_ids)
        selected_hidden_states_g = hidden_states[perm // top_k_index.shape[1]]
        sample_weights_g = sample_weights[perm]
        tokens_per_expert = jax.nn.one_hot(expert_ids_g, self.config.num_local_experts).sum(axis=0)
        offsets = jnp.cumsum(tokens_per_expert.astype(jnp.int32), axis=-1)
        # --- Up projection per expert (grouped) ---
        proj_out = grouped_linear(self.gate_up_proj, selected_hidden_states_g, offsets)
        # (S, intermediate_dim)
        gate, up = jnp.split(proj_out, 2, axis=-1)
        # (S, intermediate_dim)
        proj_out = jax.nn.silu(gate) * up
        # --- Down projection per expert (grouped) ---
        proj_out = grouped_linear(self.down_proj, proj_out, offsets)
        # Apply routing weights
        # (S, hidden_dim)
        weighted_out = proj_out * sample_weights_g[..., None]
        # Restore original order
        inv_perm = jnp.zeros_like(perm)
        inv_perm = inv_perm.at[perm].set(jnp.arange(inv_perm.shape[0]))
        # (S, hidden_dim)
        weighted_out = weighted_out[inv_perm]
        final_hidden_states = weighted_out.reshape(
            *top_k_index.shape[:2], hidden_states.shape[1]
        ).sum(axis=1)
        return final_hidden_states.astype(hidden_states.dtype)


class MixtralAttention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        self.head_dim = self.config.hidden_size // self.config.num_attention_heads
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)
        self.q_proj = dense(self.config.num_attention_heads * self.head_dim)
        self.k_proj = dense(self.config.num_key_value_heads * self.head_dim)
        self.v_proj = dense(self.config.num_key_value_heads * self.head_dim)
        self.o_proj = dense(self.config.hidden_size)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array | None
    ) -> Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        key_states = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        attn_output = sdpa_attention_forward(query_states, key_states, value_states, attention_mask)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class MixtralSparseMoeBlock(Module):
    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        self.gate = MixtralTopKRouter(self.config, **self.numerics)
        self.experts = MixtralExperts(self.config, **self.numerics)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states_2 = hidden_states.reshape(-1, hidden_states.shape[2])
        top_k_weights, top_k_index = self.gate(hidden_states_2)
        hidden_states_2 = self.experts(hidden_states_2, top_k_index, top_k_weights)
        return hidden_states_2.reshape(hidden_states.shape)


class MixtralDecoderLayer(Module):
    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        self.self_attn = MixtralAttention(self.config, **self.numerics)
        self.mlp = MixtralSparseMoeBlock(self.config, **self.numerics)
        self.input_layernorm = MixtralRMSNorm(self.config, **self.numerics)
        self.post_attention_layernorm = MixtralRMSNorm(self.config, **self.numerics)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array | None
    ) -> Array:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.self_attn(hidden_states, cos, sin, attention_mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class MixtralModel(Module):
    """The bare Mixtral Model outputting raw hidden-states without any specific head on top."""

    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.embed_tokens = nn.Embed(
            self.config.vocab_size, self.config.hidden_size, embedding_init=init, **self.dtypes
        )
        self.layers = [
            MixtralDecoderLayer(self.config, **self.numerics)
            for _ in range(self.config.num_hidden_layers)
        ]
        self.norm = MixtralRMSNorm(self.config, **self.numerics)
        self.rotary_emb = MixtralRotaryEmbedding(self.config)

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
            hidden_states = layer(hidden_states, cos, sin, padding_mask)
        return self.norm(hidden_states)


class MixtralForCausalLM(Module):
    """The Mixtral Model for causal language modeling."""

    config: MixtralForCausalLMConfig

    def setup(self) -> None:
        self.model = MixtralModel(self.config, **self.numerics)
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
        # decoder outputs consists of (dec_features, layer_state, dec_hidden, dec_attn)
        outputs = self.model(input_ids, attention_mask, position_ids)
        logits = self.lm_head(outputs)
        return {"logits": logits}
