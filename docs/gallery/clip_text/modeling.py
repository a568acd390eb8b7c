"""CLIPTextModelWithProjection in Flax, ported from transformers.models.clip.modeling_clip."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from .config import CLIPTextModelWithProjectionConfig


def sdpa_attention_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(
        query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2), is_causal=True
    )


class CLIPTextEmbeddings(nn.Module):
    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.position_ids = jnp.arange(self.config.max_position_embeddings, dtype=jnp.int32)[None]
        self.token_embedding = nn.Embed(self.config.vocab_size, self.config.hidden_size)
        self.position_embedding = nn.Embed(
            self.config.max_position_embeddings, self.config.hidden_size
        )

    def __call__(self, input_ids: jax.Array) -> jax.Array:
        position_ids = self.position_ids[:, : input_ids.shape[1]]
        inputs_embeds = self.token_embedding(input_ids)
        position_embeddings = self.position_embedding(position_ids)
        return inputs_embeds + position_embeddings


class CLIPAttention(nn.Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.head_dim = self.config.hidden_size // self.config.num_attention_heads
        self.k_proj = nn.Dense(self.config.hidden_size)
        self.v_proj = nn.Dense(self.config.hidden_size)
        self.q_proj = nn.Dense(self.config.hidden_size)
        self.out_proj = nn.Dense(self.config.hidden_size)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        queries = self.q_proj(hidden_states)
        keys = self.k_proj(hidden_states)
        values = self.v_proj(hidden_states)
        hidden_shape = (*queries.shape[:2], -1, self.head_dim)
        queries = queries.reshape(hidden_shape).swapaxes(1, 2)
        keys = keys.reshape(*keys.shape[:2], -1, self.head_dim).swapaxes(1, 2)
        values = values.reshape(*values.shape[:2], -1, self.head_dim).swapaxes(1, 2)
        attn_output = sdpa_attention_forward(queries, keys, values)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.out_proj(attn_output)


class CLIPMLP(nn.Module):
    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.fc1 = nn.Dense(self.config.intermediate_size)
        self.fc2 = nn.Dense(self.config.hidden_size)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        hidden_states = self.fc1(hidden_states)
        hidden_states = hidden_states * jax.nn.sigmoid(hidden_states * 1.702)
        return self.fc2(hidden_states)


class CLIPEncoderLayer(nn.Module):
    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.self_attn = CLIPAttention(self.config)
        self.layer_norm1 = nn.LayerNorm(epsilon=self.config.layer_norm_eps, use_fast_variance=False)
        self.mlp = CLIPMLP(self.config)
        self.layer_norm2 = nn.LayerNorm(epsilon=self.config.layer_norm_eps, use_fast_variance=False)

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        residual = hidden_states
        hidden_states = self.layer_norm1(hidden_states)
        hidden_states = self.self_attn(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.layer_norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class CLIPEncoder(nn.Module):
    """Transformer encoder consisting of `config.num_hidden_layers` self attention layers."""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.layers = [CLIPEncoderLayer(self.config) for _ in range(self.config.num_hidden_layers)]

    def __call__(self, inputs_embeds: jax.Array) -> jax.Array:
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class CLIPTextModel(nn.Module):
    """The text model from CLIP without any head or projection on top."""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.embeddings = CLIPTextEmbeddings(self.config)
        self.encoder = CLIPEncoder(self.config)
        self.final_layer_norm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False
        )

    def __call__(self, input_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden_states = self.embeddings(input_ids)
        encoder_outputs = self.encoder(hidden_states)
        last_hidden_state = self.final_layer_norm(encoder_outputs)
        # The config gets updated `eos_token_id` from PR #24773 (so the use of extra new tokens
        # is possible)
        pooled_output = jnp.arange(input_ids.shape[0])
        pooled_output_2 = input_ids == 99
        pooled_output_2 = pooled_output_2.astype(jnp.int32)
        pooled_output_2 = pooled_output_2.argmax(axis=-1)
        pooled_output = last_hidden_state[pooled_output, pooled_output_2]
        return last_hidden_state, pooled_output


class CLIPTextModelWithProjection(nn.Module):
    """The Clip Model with a projection layer on top (a linear layer on top of the pooled
    output)."""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.text_model = CLIPTextModel(self.config)
        self.text_projection = nn.Dense(self.config.projection_dim, use_bias=False)

    def __call__(self, input_ids: jax.Array) -> dict[str, jax.Array]:
        text_outputs_0, text_outputs_1 = self.text_model(input_ids)
        text_embeds = self.text_projection(text_outputs_1)
        return {"text_embeds": text_embeds, "last_hidden_state": text_outputs_0}
