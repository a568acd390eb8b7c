"""SiglipVisionModel in Flax, ported from transformers.models.siglip.modeling_siglip."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import SiglipVisionConfig


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


def sdpa_attention_forward(query: Array, key: Array, value: Array) -> Array:
    return jax.nn.dot_product_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2)
    )


class SiglipVisionEmbeddings(Module):
    config: SiglipVisionConfig

    def setup(self) -> None:
        self.num_positions = (self.config.image_size // self.config.patch_size) ** 2
        self.position_ids = jnp.arange(self.num_positions, dtype=jnp.int32)[None]
        self.patch_embedding = nn.Conv(
            self.config.hidden_size,
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
            kernel_init=nn.initializers.variance_scaling(1.2924216342232246, "fan_in", "normal"),
            **self.numerics,
        )
        init = nn.initializers.normal(1 / math.sqrt(self.config.hidden_size))
        self.position_embedding = nn.Embed(
            self.num_positions, self.config.hidden_size, embedding_init=init, **self.dtypes
        )

    def __call__(self, pixel_values: Array) -> Array:
        patch_embeds = self.patch_embedding(jnp.moveaxis(pixel_values, 1, -1))
        embeddings = patch_embeds.reshape(patch_embeds.shape[0], -1, patch_embeds.shape[-1])
        return embeddings + self.position_embedding(self.position_ids)


class SiglipAttention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: SiglipVisionConfig

    def setup(self) -> None:
        init = nn.initializers.xavier_uniform()
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.k_proj = dense(self.config.hidden_size)
        self.v_proj = dense(self.config.hidden_size)
        self.q_proj = dense(self.config.hidden_size)
        self.out_proj = dense(self.config.hidden_size)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_shape = (
            *hidden_states.shape[:2],
            -1,
            self.config.hidden_size // self.config.num_attention_heads,
        )
        queries = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        keys = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        values = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        attn_output = sdpa_attention_forward(queries, keys, values)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.out_proj(attn_output)


class SiglipMLP(Module):
    config: SiglipVisionConfig

    def setup(self) -> None:
        init = nn.initializers.xavier_uniform()
        dense: Any = partial(
            nn.Dense, kernel_init=init, bias_init=nn.initializers.normal(1e-6), **self.numerics
        )
        self.fc1 = dense(self.config.intermediate_size)
        self.fc2 = dense(self.config.hidden_size)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.fc1(hidden_states)
        hidden_states = jax.nn.gelu(hidden_states, approximate=True)
        return self.fc2(hidden_states)


class SiglipEncoderLayer(Module):
    config: SiglipVisionConfig

    def setup(self) -> None:
        norm: Any = partial(
            nn.LayerNorm, epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.layer_norm1 = norm()
        self.self_attn = SiglipAttention(self.config, **self.numerics)
        self.layer_norm2 = norm()
        self.mlp = SiglipMLP(self.config, **self.numerics)

    def __call__(self, hidden_states: Array) -> Array:
        residual = hidden_states
        hidden_states = self.layer_norm1(hidden_states)
        hidden_states = self.self_attn(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.layer_norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class SiglipMultiheadAttentionPoolingHead(Module):
    """Multihead Attention Pooling."""

    config: SiglipVisionConfig

    def setup(self) -> None:
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform", in_axis=-2, out_axis=-3)
        self.probe = self.cast_param("probe", init, (1, 1, self.config.hidden_size))
        self.attention = nn.MultiHeadDotProductAttention(
            num_heads=self.config.num_attention_heads,
            kernel_init=nn.initializers.variance_scaling(0.5, "fan_avg", "uniform"),
            out_kernel_init=nn.initializers.variance_scaling(
                1.2924216342232246, "fan_in", "normal"
            ),
            **self.numerics,
        )
        self.layernorm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.mlp = SiglipMLP(self.config, **self.numerics)

    def __call__(self, hidden_state: Array) -> Array:
        probe = jnp.tile(self.probe, (hidden_state.shape[0], 1, 1))
        hidden_state = self.attention(probe, hidden_state)
        residual = hidden_state
        hidden_state = self.layernorm(hidden_state)
        hidden_state = residual + self.mlp(hidden_state)
        return hidden_state[:, 0]


class SiglipEncoder(Module):
    """Transformer encoder consisting of `config.num_hidden_layers` self attention layers."""

    config: SiglipVisionConfig

    def setup(self) -> None:
        self.layers = [
            SiglipEncoderLayer(self.config, **self.numerics)
            for _ in range(self.config.num_hidden_layers)
        ]

    def __call__(self, inputs_embeds: Array) -> Array:
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class SiglipVisionModel(Module):
    """The vision model from SigLIP without any head or projection on top."""

    config: SiglipVisionConfig

    def setup(self) -> None:
        self.embeddings = SiglipVisionEmbeddings(self.config, **self.numerics)
        self.encoder = SiglipEncoder(self.config, **self.numerics)
        self.post_layernorm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.head = SiglipMultiheadAttentionPoolingHead(self.config, **self.numerics)

    def __call__(self, pixel_values: Array) -> dict[str, Array]:
        hidden_states = self.embeddings(pixel_values)
        encoder_outputs = self.encoder(hidden_states)
        last_hidden_state = self.post_layernorm(encoder_outputs)
        pooler_output = self.head(last_hidden_state)
        return {"last_hidden_state": last_hidden_state, "pooler_output": pooler_output}
