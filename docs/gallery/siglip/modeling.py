"""SiglipVisionModel in Flax, ported from transformers.models.siglip.modeling_siglip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from .config import SiglipVisionConfig


def sdpa_attention_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2)
    )


class SiglipVisionEmbeddings(nn.Module):
    config: SiglipVisionConfig

    def setup(self) -> None:
        self.num_positions = (self.config.image_size // self.config.patch_size) ** 2
        self.position_ids = jnp.arange(self.num_positions, dtype=jnp.int32)[None]
        self.patch_embedding = nn.Conv(
            self.config.hidden_size,
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
        )
        self.position_embedding = nn.Embed(self.num_positions, self.config.hidden_size)

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
        hidden_shape = (
            *hidden_states.shape[:2],
            -1,
            self.config.hidden_size // self.config.num_attention_heads,
        )
        queries = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        keys = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        values = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
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
        self.attention = nn.MultiHeadDotProductAttention(num_heads=self.config.num_attention_heads)
        self.layernorm = nn.LayerNorm(epsilon=self.config.layer_norm_eps, use_fast_variance=False)
        self.mlp = SiglipMLP(self.config)

    def __call__(self, hidden_state: jax.Array) -> jax.Array:
        probe = jnp.tile(self.probe, (hidden_state.shape[0], 1, 1))
        hidden_state = self.attention(probe, hidden_state)
        residual = hidden_state
        hidden_state = self.layernorm(hidden_state)
        hidden_state = residual + self.mlp(hidden_state)
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
