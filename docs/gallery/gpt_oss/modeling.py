"""GptOssForCausalLM in Flax, ported from transformers.models.gpt_oss.modeling_gpt_oss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike
from safetensors import safe_open

from .config import GptOssForCausalLMConfig


def clamp(x: Array, low: Array | float | None = None, high: Array | float | None = None) -> Array:
    """`jnp.clip`, with torch's gradient of an element exactly at a bound: 1, not a half."""
    if low is not None:
        x = jnp.where(x >= low, x, jnp.maximum(x, low))  # NaN if either is
    if high is not None:
        x = jnp.where(x <= high, x, jnp.minimum(x, high))
    return x


def stored(path: Sequence[str], name: str, shape: Sequence[int]) -> Array:
    """An array that the original computes when it is made; initial.safetensors has it for this size."""
    with safe_open(Path(__file__).with_name("initial.safetensors"), framework="numpy") as file:
        keys = set(file.keys())
        steps = [*path, name]
        # The model may be part of another one: then the path begins with that one's.
        ends = ["/".join(steps[start:]) for start in range(len(steps))]
        key = next((end for end in ends if end in keys), None)
        if key is None:
            raise ValueError(f"{'/'.join(steps)}: initial.safetensors lacks it")
        array = file.get_tensor(key)
    if array.shape != tuple(shape):
        raise ValueError(
            f"{key}: has {array.shape} in initial.safetensors; {tuple(shape)} is needed"
        )
    return jnp.asarray(array)


def demand_size(holds: bool, what: str) -> None:
    """Raise ValueError for input sizes that this port does not support."""
    if not holds:
        raise ValueError(f"this port takes {what}; see 'Free axes' in its README")


def max_with_index(x: Array, axis: int, keepdims: bool = False) -> tuple[Array, Array]:
    """The largest along an axis and its index; as in torch, no other element of it has a gradient."""
    index = jnp.argmax(x, axis=axis, keepdims=True)
    there = jnp.indices(x.shape, sparse=True)[axis] == index
    largest = jnp.where(there, x, 0).sum(axis=axis, keepdims=keepdims)
    return largest, index if keepdims else index.squeeze(axis)


def largest(x: Array, axis: int, keepdims: bool = False) -> Array:
    """`x.max(axis)`, with torch's gradient among equal elements: the first has all of it."""
    return max_with_index(x, axis, keepdims)[0]


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


def apply_rotary_emb(x: Array, cos: Array, sin: Array) -> Array:
    first_half, second_half = jnp.split(x, 2, axis=-1)
    first_ = first_half * cos - second_half * sin
    second_ = second_half * cos + first_half * sin
    return jnp.concatenate([first_, second_], axis=-1)


def apply_rotary_pos_emb(q: Array, k: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    cos = cos[:, None]
    sin = sin[:, None]
    q_embed = apply_rotary_emb(q, cos, sin)
    k_embed = apply_rotary_emb(k, cos, sin)
    return q_embed, k_embed


def repeat_kv(hidden_states: Array) -> Array:
    """This is the equivalent of torch.repeat_interleave(x, dim=1, repeats=n_rep)."""
    hidden_states_2 = jnp.broadcast_to(
        hidden_states[:, :, None],
        (hidden_states.shape[0], 2, 2, hidden_states.shape[2], hidden_states.shape[3]),
    )
    return hidden_states_2.reshape(
        hidden_states_2.shape[0], -1, hidden_states_2.shape[3], hidden_states.shape[3]
    )


def eager_attention_forward(
    query: Array, key: Array, value: Array, attention_mask: Array, sinks: Array, scaling: float
) -> Array:
    key_states = repeat_kv(key)
    value_states = repeat_kv(value)
    attn_weights = query @ key_states.swapaxes(2, 3) * scaling
    attn_weights = attn_weights + attention_mask
    sinks = sinks.reshape(1, -1, 1, 1)
    sinks = jnp.broadcast_to(sinks, (query.shape[0], sinks.shape[1], query.shape[2], 1))
    combined_logits = jnp.concatenate([attn_weights, sinks], axis=-1)
    combined_logits = combined_logits - largest(combined_logits, axis=-1, keepdims=True)
    probs = jax.nn.softmax(combined_logits, axis=-1)
    # we drop the sink here
    scores = probs[..., :-1]
    attn_output = scores @ value_states
    return attn_output.swapaxes(1, 2)


def grouped_linear(
    selected_hidden_states_g: Array, offsets: Array, gate_up_proj: Array, selected_biases: Array
) -> Array:
    """Grouped linear layer supporting optional bias and transposed weights."""
    out = jax.lax.ragged_dot(selected_hidden_states_g, gate_up_proj, jnp.diff(offsets, prepend=0))
    # We should be able to pass bias to the grouped_mm call, but it's not yet supported.
    return out + selected_biases


def apply_gate(gate_up: Array, limit: float, limit_2: float, alpha: float) -> Array:
    gate = clamp(gate_up[:, ::2], high=limit)
    up = clamp(gate_up[:, 1::2], limit_2, limit)
    glu = gate * jax.nn.sigmoid(gate * alpha)
    return (up + 1) * glu


def grouped_mm_experts_forward(
    hidden_states: Array,
    routing_weights: Array,
    router_indices: Array,
    gate_up_proj_bias: Array,
    gate_up_proj: Array,
    down_proj_bias: Array,
    down_proj: Array,
    num_experts: int,
    limit: float,
    limit_2: float,
    alpha: float,
) -> Array:
    # S is the number of selected tokens-experts pairs (S = num_tokens * num_top_k)
    # (S,)
    sample_weights = routing_weights.reshape(-1)
    # (S,)
    expert_ids = router_indices.reshape(-1)
    # Sort by expert for grouped processing
    expert_ids_g, perm = jnp.sort(expert_ids), jnp.argsort(expert_ids)
    selected_hidden_states_g = hidden_states[perm // 2]
    sample_weights_g = sample_weights[perm]
    tokens_per_expert = jax.nn.one_hot(expert_ids_g, num_experts).sum(axis=0)
    offsets = jnp.cumsum(tokens_per_expert.astype(jnp.int32), axis=-1)
    selected_biases = gate_up_proj_bias[expert_ids_g]
    # --- Up projection per expert (grouped) ---
    proj_out = grouped_linear(selected_hidden_states_g, offsets, gate_up_proj, selected_biases)
    # for gated experts we apply the custom/default gating mechanism
    # (S, intermediate_dim)
    proj_out = apply_gate(proj_out, limit, limit_2, alpha)
    selected_biases = down_proj_bias[expert_ids_g]
    # --- Down projection per expert (grouped) ---
    proj_out = grouped_linear(proj_out, offsets, down_proj, selected_biases)
    # Apply routing weights
    # (S, hidden_dim)
    weighted_out = proj_out * sample_weights_g[..., None]
    # Restore original order
    inv_perm = jnp.zeros_like(perm)
    inv_perm = inv_perm.at[perm].set(jnp.arange(inv_perm.shape[0]))
    # (S, hidden_dim)
    weighted_out = weighted_out[inv_perm]
    return weighted_out.reshape(hidden_states.shape[0], 2, hidden_states.shape[1]).sum(axis=1)


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


def eager_mask(
    causal_mask_mapping_0: Array,
    output: Array | None,
    causal_mask_mapping_1: Array,
    dtype: DTypeLike,
) -> Array:
    """Create a 4D float mask of shape `(batch_size, 1, query_length, kv_length)` where a value
    of 0 indicates that the element should take part in the attention computation, and -inf
    (minimum value for the given `dtype`) that it should not."""
    result = causal_mask_mapping_1 if output is None else causal_mask_mapping_0 & output
    # we need 0s where the tokens should be taken into account, and -inf otherwise (mask is
    # already of boolean type)
    return jnp.where(result, jnp.zeros((), dtype), jnp.finfo(dtype).min)


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


class GptOssRotaryEmbedding(nn.Module):
    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        self.inv_freq = self.variable(
            "buffers", "inv_freq", stored, self.path, "inv_freq", (8,)
        ).value

    def __call__(self, position_ids: Array, dtype: DTypeLike) -> tuple[Array, Array]:
        freqs = position_ids[..., None].astype(jnp.float32) * self.inv_freq
        cos = jnp.cos(freqs) * self.config.attention_scaling
        sin = jnp.sin(freqs) * self.config.attention_scaling
        return cos.astype(dtype), sin.astype(dtype)


class GptOssRMSNorm(Module):
    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        self.weight = self.cast_param("weight", nn.initializers.ones, (self.config.hidden_size,))

    def __call__(self, hidden_states: Array) -> Array:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.astype(jnp.float32)
        variance = jnp.square(hidden_states).mean(axis=-1, keepdims=True)
        hidden_states = hidden_states * jax.lax.rsqrt(variance + self.config.rms_norm_eps)
        # main diff with Llama
        return (self.weight * hidden_states).astype(input_dtype)


class GptOssTopKRouter(Module):
    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.weight = self.cast_param(
            "weight", init, (self.config.num_local_experts, self.config.hidden_size)
        )
        self.bias = self.cast_param("bias", init, (self.config.num_local_experts,))

    def __call__(self, hidden_states: Array) -> tuple[Array, Array]:
        # (num_tokens, num_experts)
        router_logits = hidden_states @ self.weight.T + self.bias
        # (num_tokens, top_k)
        router_top_value, router_indices = jax.lax.top_k(
            router_logits, self.config.num_experts_per_tok
        )
        router_scores = jax.nn.softmax(router_top_value, axis=-1)
        return router_scores, router_indices


class GptOssExperts(Module):
    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        self.gate_up_proj_bias = self.cast_param(
            "gate_up_proj_bias",
            nn.initializers.zeros,
            (self.config.num_local_experts, 2 * self.config.intermediate_size),
        )
        self.gate_up_proj = self.cast_param(
            "gate_up_proj",
            nn.initializers.normal(self.config.initializer_range),
            (
                self.config.num_local_experts,
                self.config.hidden_size,
                2 * self.config.intermediate_size,
            ),
        )
        self.down_proj_bias = self.cast_param(
            "down_proj_bias",
            nn.initializers.zeros,
            (self.config.num_local_experts, self.config.hidden_size),
        )
        self.down_proj = self.cast_param(
            "down_proj",
            nn.initializers.normal(self.config.initializer_range),
            (self.config.num_local_experts, self.config.intermediate_size, self.config.hidden_size),
        )

    def __call__(
        self, hidden_states: Array, router_indices: Array, routing_weights: Array
    ) -> Array:
        return grouped_mm_experts_forward(
            hidden_states,
            routing_weights,
            router_indices,
            self.gate_up_proj_bias,
            self.gate_up_proj,
            self.down_proj_bias,
            self.down_proj,
            self.config.num_local_experts,
            self.config.swiglu_limit,
            -self.config.swiglu_limit,
            self.config.swiglu_alpha,
        )


class GptOssAttention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.sinks = self.cast_param("sinks", init, (self.config.num_attention_heads,))
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.q_proj = dense(self.config.num_attention_heads * self.config.head_dim)
        self.k_proj = dense(self.config.num_key_value_heads * self.config.head_dim)
        self.v_proj = dense(self.config.num_key_value_heads * self.config.head_dim)
        self.o_proj = dense(self.config.hidden_size)

    def __call__(
        self, hidden_states: Array, cos: Array, sin: Array, attention_mask: Array
    ) -> Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.config.head_dim)
        query_states = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        key_states = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
        attn_output = eager_attention_forward(
            query_states,
            key_states,
            value_states,
            attention_mask,
            self.sinks,
            self.config.head_dim**-0.5,
        )
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class GptOssMLP(Module):
    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        self.router = GptOssTopKRouter(self.config, **self.numerics)
        self.experts = GptOssExperts(self.config, **self.numerics)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states_2 = hidden_states.reshape(-1, hidden_states.shape[2])
        router_scores, router_indices = self.router(hidden_states_2)
        hidden_states_2 = self.experts(hidden_states_2, router_indices, router_scores)
        return hidden_states_2.reshape(hidden_states.shape)


class GptOssDecoderLayer(Module):
    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        self.self_attn = GptOssAttention(self.config, **self.numerics)
        self.mlp = GptOssMLP(self.config, **self.numerics)
        self.input_layernorm = GptOssRMSNorm(self.config, **self.numerics)
        self.post_attention_layernorm = GptOssRMSNorm(self.config, **self.numerics)

    def __call__(
        self, hidden_states: Array, attention_mask: Array, cos: Array, sin: Array
    ) -> Array:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        # Self Attention
        hidden_states = self.self_attn(hidden_states, cos, sin, attention_mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        # diff with llama: router scores
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class GptOssModel(Module):
    """The bare Gpt Oss Model outputting raw hidden-states without any specific head on top."""

    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        self.embed_tokens = nn.Embed(
            self.config.vocab_size, self.config.hidden_size, embedding_init=init, **self.dtypes
        )
        self.layers = [GptOssDecoderLayer(self.config, **self.numerics) for _ in range(3)]
        self.norm = GptOssRMSNorm(self.config, **self.numerics)
        self.rotary_emb = GptOssRotaryEmbedding(self.config)

    def __call__(
        self, input_ids: Array, attention_mask: Array | None, position_ids: Array | None
    ) -> Array:
        inputs_embeds = self.embed_tokens(input_ids)
        causal_mask_mapping_0, causal_mask_mapping_1 = create_causal_mask(
            input_ids.shape[1], input_ids.shape[0]
        )
        output = None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        causal_mask_mapping = eager_mask(
            causal_mask_mapping_0, output, causal_mask_mapping_1, inputs_embeds.dtype
        )
        causal_mask_mapping_0, causal_mask_mapping_1 = create_sliding_window_causal_mask(
            input_ids.shape[1], input_ids.shape[0]
        )
        output = None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        causal_mask_mapping_2 = eager_mask(
            causal_mask_mapping_0, output, causal_mask_mapping_1, inputs_embeds.dtype
        )
        if position_ids is None:
            position_ids = jnp.arange(input_ids.shape[1])[None]
        cos, sin = self.rotary_emb(position_ids, inputs_embeds.dtype)
        hidden_states = self.layers[0](inputs_embeds, causal_mask_mapping_2, cos, sin)
        hidden_states = self.layers[1](hidden_states, causal_mask_mapping, cos, sin)
        hidden_states = self.layers[2](hidden_states, causal_mask_mapping_2, cos, sin)
        return self.norm(hidden_states)


class GptOssForCausalLM(Module):
    """The Gpt Oss Model for causal language modeling."""

    config: GptOssForCausalLMConfig

    def setup(self) -> None:
        self.model = GptOssModel(self.config, **self.numerics)
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
        demand_size(input_ids.shape[1] >= 4, "axis 1 of input_ids: from 4")
        # decoder outputs consists of (dec_features, layer_state, dec_hidden, dec_attn)
        outputs = self.model(input_ids, attention_mask, position_ids)
        logits = self.lm_head(outputs)
        return {"logits": logits}
