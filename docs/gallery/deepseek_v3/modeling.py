"""DeepseekV3ForCausalLM in Flax, ported from
transformers.models.deepseek_v3.modeling_deepseek_v3."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import DeepseekV3ForCausalLMConfig


def general_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Array:
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


def apply_rotary_pos_emb_interleave(
    q: Array, k: Array, cos: Array, sin: Array
) -> tuple[Array, Array]:
    """Applies interleaved Rotary Position Embedding to the query and key tensors."""
    # `cos`/`sin` are `cat(freqs, freqs)`; the first half holds the per-pair angle.
    cos = cos[..., : cos.shape[-1] // 2][:, None]
    sin = sin[..., : sin.shape[-1] // 2][:, None]
    q1 = q[..., ::2]
    q2 = q[..., 1::2]
    k1 = k[..., ::2]
    k2 = k[..., 1::2]
    q_embed = jnp.concatenate([q1 * cos - q2 * sin, q2 * cos + q1 * sin], axis=-1)
    k_embed = jnp.concatenate([k1 * cos - k2 * sin, k2 * cos + k1 * sin], axis=-1)
    return q_embed, k_embed


def sdpa_attention_forward(
    query: Array, key: Array, value: Array, attention_mask: Array | None
) -> Array:
    attn_output = general_attention(query, key, value, is_causal=True, mask=attention_mask)
    return attn_output.swapaxes(1, 2)


def grouped_linear(gate_up_proj: Array, selected_hidden_states_g: Array, offsets: Array) -> Array:
    """Grouped linear layer supporting optional bias and transposed weights."""
    return jax.lax.ragged_dot(
        selected_hidden_states_g, gate_up_proj.swapaxes(-2, -1), jnp.diff(offsets, prepend=0)
    )


class DeepseekV3RotaryEmbedding(nn.Module):
    config: DeepseekV3ForCausalLMConfig

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


class DeepseekV3RMSNorm(Module):
    hidden_size: int
    variance_epsilon: float

    def setup(self) -> None:
        self.weight = self.cast_param("weight", nn.initializers.ones, (self.hidden_size,))

    def __call__(self, hidden_states: Array) -> Array:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.astype(jnp.float32)
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.astype(input_dtype)


class DeepseekV3TopkRouter(Module):
    config: DeepseekV3ForCausalLMConfig

    def setup(self) -> None:
        self.weight = self.param(
            "weight",
            nn.initializers.normal(self.config.initializer_range),
            (self.config.num_local_experts, self.config.hidden_size),
            self.param_dtype,
        )
        self.e_score_correction_bias = jnp.asarray(
            self.variable(
                "buffers",
                "e_score_correction_bias",
                jnp.zeros,
                (self.config.num_local_experts,),
                self.param_dtype,
            ).value,
            self.dtype,
        )

    def __call__(self, hidden_states: Array) -> tuple[Array, Array]:
        hidden_states = hidden_states.reshape(-1, self.config.hidden_size)
        router_logits = hidden_states.astype(jnp.float32) @ self.weight.astype(jnp.float32).T
        scores = jax.nn.sigmoid(router_logits)
        scores_for_choice = scores + self.e_score_correction_bias
        group_scores = scores_for_choice.reshape(
            -1, self.config.n_group, self.config.num_local_experts // self.config.n_group
        )
        group_scores_0, _ = jax.lax.top_k(group_scores, 2)
        group_scores = group_scores_0.sum(axis=-1)
        _, group_idx_1 = jax.lax.top_k(group_scores, 2)
        group_mask = jnp.zeros_like(group_scores)
        score_mask = jnp.broadcast_to(
            jnp.put_along_axis(group_mask, group_idx_1, 1, axis=-1, inplace=False)[..., None],
            (group_mask.shape[0], self.config.n_group, 2),
        )
        score_mask = score_mask.reshape(score_mask.shape[0], self.config.num_local_experts)
        scores_for_choice = jnp.where(~score_mask.astype(jnp.bool_), -jnp.inf, scores_for_choice)
        _, topk_indices_1 = jax.lax.top_k(scores_for_choice, self.config.num_experts_per_tok)
        topk_weights = jnp.take_along_axis(scores, topk_indices_1, axis=-1)
        denominator = topk_weights.sum(axis=-1, keepdims=True) + 1e-20
        topk_weights = topk_weights / denominator
        topk_weights = topk_weights * self.config.routed_scaling_factor
        return topk_weights, topk_indices_1


class DeepseekV3Experts(Module):
    """Collection of expert weights stored as 3D tensors."""

    config: DeepseekV3ForCausalLMConfig

    def setup(self) -> None:
        self.gate_up_proj = self.cast_param(
            "gate_up_proj",
            nn.initializers.normal(self.config.initializer_range),
            (
                self.config.num_local_experts,
                2 * self.config.moe_intermediate_size,
                self.config.hidden_size,
            ),
        )
        self.down_proj = self.cast_param(
            "down_proj",
            nn.initializers.normal(self.config.initializer_range),
            (
                self.config.num_local_experts,
                self.config.hidden_size,
                self.config.moe_intermediate_size,
            ),
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


class DeepseekV3Attention(Module):
    """Multi-headed Latent Attention (MLA) from Deepseek V2, with support for rope interleave."""

    config: DeepseekV3ForCausalLMConfig

    def setup(self) -> None:
        self.qk_head_dim = self.config.qk_nope_head_dim + self.config.qk_rope_head_dim
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)
        self.q_a_proj = dense(self.config.q_lora_rank)
        norm: Any = partial(DeepseekV3RMSNorm, variance_epsilon=1e-6, **self.numerics)
        self.q_a_layernorm = norm(hidden_size=self.config.q_lora_rank)
        self.q_b_proj = dense(self.config.num_attention_heads * self.qk_head_dim)
        self.kv_a_proj_with_mqa = dense(self.config.kv_lora_rank + self.config.qk_rope_head_dim)
        self.kv_a_layernorm = norm(hidden_size=self.config.kv_lora_rank)
        self.kv_b_proj = dense(
            self.config.num_attention_heads
            * (self.config.qk_nope_head_dim + self.config.v_head_dim)
        )
        self.o_proj = dense(self.config.hidden_size)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array | None
    ) -> Array:
        q_states = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        query_shape = (*q_states.shape[:2], -1, self.qk_head_dim)
        q_states = q_states.reshape(query_shape).swapaxes(1, 2)
        q_pass, q_rot = jnp.split(q_states, [self.config.qk_nope_head_dim], axis=-1)
        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        kv_nope, k_rot = jnp.split(compressed_kv, [self.config.kv_lora_rank], axis=-1)
        kv_nope = self.kv_a_layernorm(kv_nope)
        # Both latents are viewed as single-head, 4D tensors so all cache layers handle them
        # correctly
        kv_nope = kv_nope.reshape(kv_nope.shape[0], 1, kv_nope.shape[1], self.config.kv_lora_rank)
        k_rot = k_rot.reshape(k_rot.shape[0], 1, k_rot.shape[1], self.config.qk_rope_head_dim)
        q_rot, k_rot = apply_rotary_pos_emb_interleave(q_rot, k_rot, cos, sin)
        query_states = jnp.concatenate([q_pass, q_rot], axis=-1)
        key_shape = (
            kv_nope.shape[0],
            kv_nope.shape[2],
            -1,
            self.config.qk_nope_head_dim + self.config.v_head_dim,
        )
        kv_nope = self.kv_b_proj(kv_nope).reshape(key_shape).swapaxes(1, 2)
        k_nope, value_states = jnp.split(kv_nope, [self.config.qk_nope_head_dim], axis=-1)
        # does not affect the underlying storage
        k_rot = jnp.broadcast_to(
            k_rot, (k_rot.shape[0], k_nope.shape[1], k_rot.shape[2], k_rot.shape[3])
        )
        # Concatenate k_nope and k_rot in a new tensor
        key_states = jnp.zeros(
            (hidden_states.shape[0], 4, hidden_states.shape[1], 20), hidden_states.dtype
        )
        key_states = key_states.at[..., :12].set(
            jnp.broadcast_to(k_nope, (key_states.shape[0], 4, key_states.shape[2], 12))
        )
        key_states = key_states.at[..., 12:].set(
            jnp.broadcast_to(k_rot, (key_states.shape[0], 4, key_states.shape[2], 8))
        )
        attn_output = sdpa_attention_forward(query_states, key_states, value_states, attention_mask)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class DeepseekV3MLP(Module):
    config: DeepseekV3ForCausalLMConfig
    intermediate_size: int

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, use_bias=False, kernel_init=init, **self.numerics)
        self.gate_proj = dense(self.intermediate_size)
        self.up_proj = dense(self.intermediate_size)
        self.down_proj = dense(self.config.hidden_size)

    def __call__(self, x: Array) -> Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DeepseekV3MoE(Module):
    """A mixed expert module containing shared experts."""

    config: DeepseekV3ForCausalLMConfig

    def setup(self) -> None:
        self.experts = DeepseekV3Experts(self.config, **self.numerics)
        self.gate = DeepseekV3TopkRouter(self.config, **self.numerics)
        self.shared_experts = DeepseekV3MLP(
            self.config,
            intermediate_size=self.config.moe_intermediate_size * self.config.n_shared_experts,
            **self.numerics,
        )

    def __call__(self, hidden_states: Array) -> Array:
        topk_weights, topk_indices = self.gate(hidden_states)
        residuals = hidden_states
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[2])
        hidden_states = self.experts(hidden_states, topk_indices, topk_weights)
        orig_shape = (*residuals.shape[:2], hidden_states.shape[1])
        hidden_states = hidden_states.reshape(orig_shape)
        return hidden_states + self.shared_experts(residuals)


class DeepseekV3DecoderLayer(Module):
    config: DeepseekV3ForCausalLMConfig
    with_moe: bool

    def setup(self) -> None:
        self.self_attn = DeepseekV3Attention(self.config, **self.numerics)
        if self.with_moe:
            self.mlp = DeepseekV3MoE(self.config, **self.numerics)
        else:
            self.mlp = DeepseekV3MLP(
                self.config, intermediate_size=self.config.intermediate_size, **self.numerics
            )
        norm: Any = partial(
            DeepseekV3RMSNorm,
            hidden_size=self.config.hidden_size,
            variance_epsilon=self.config.rms_norm_eps,
            **self.numerics,
        )
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()

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


class DeepseekV3Model(Module):
    """The bare Deepseek V3 Model outputting raw hidden-states without any specific head on
    top."""

    config: DeepseekV3ForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.embed_tokens = nn.Embed(
            self.config.vocab_size, self.config.hidden_size, embedding_init=init, **self.dtypes
        )
        self.layers = [
            DeepseekV3DecoderLayer(self.config, with_moe=False, **self.numerics),
            DeepseekV3DecoderLayer(self.config, with_moe=True, **self.numerics),
            DeepseekV3DecoderLayer(self.config, with_moe=True, **self.numerics),
        ]
        self.norm = DeepseekV3RMSNorm(
            hidden_size=self.config.hidden_size,
            variance_epsilon=self.config.rms_norm_eps,
            **self.numerics,
        )
        self.rotary_emb = DeepseekV3RotaryEmbedding(self.config)

    def __call__(
        self, input_ids: Array, attention_mask: Array | None, position_ids: Array | None
    ) -> Array:
        inputs_embeds = self.embed_tokens(input_ids)
        padding_mask = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None]
        # create position embeddings to be shared across the decoder layers
        cos, sin = self.rotary_emb(position_ids, inputs_embeds.dtype)
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states, padding_mask, cos, sin)
        return self.norm(hidden_states)


class DeepseekV3ForCausalLM(Module):
    """The Deepseek V3 Model for causal language modeling."""

    config: DeepseekV3ForCausalLMConfig

    def setup(self) -> None:
        self.model = DeepseekV3Model(self.config, **self.numerics)
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
