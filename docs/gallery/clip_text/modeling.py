"""CLIPTextModelWithProjection in Flax, ported from transformers.models.clip.modeling_clip."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import CLIPTextModelWithProjectionConfig


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
    def dtypes(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    @property
    def numerics(self) -> dict[str, Any]:
        return {**self.dtypes, "precision": self.precision}


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


class CLIPTextEmbeddings(Module):
    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.position_ids = jnp.arange(self.config.max_position_embeddings, dtype=jnp.int32)[None]
        init = nn.initializers.normal(self.config.initializer_factor * 0.02)
        embed: Any = partial(nn.Embed, embedding_init=init, **self.dtypes)
        self.token_embedding = embed(self.config.vocab_size, self.config.hidden_size)
        self.position_embedding = embed(
            self.config.max_position_embeddings, self.config.hidden_size
        )

    def __call__(self, input_ids: Array, position_ids: Array | None) -> Array:
        inputs_embeds = self.token_embedding(input_ids)
        if position_ids is None:
            position_ids = self.position_ids[:, : input_ids.shape[1]]
        position_embeddings = self.position_embedding(position_ids)
        return inputs_embeds + position_embeddings


class CLIPAttention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.head_dim = self.config.hidden_size // self.config.num_attention_heads
        init = nn.initializers.normal(
            self.config.hidden_size**-0.5
            * (2 * self.config.num_hidden_layers) ** -0.5
            * self.config.initializer_factor
        )
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.k_proj = dense(self.config.hidden_size)
        self.v_proj = dense(self.config.hidden_size)
        self.q_proj = dense(self.config.hidden_size)
        self.out_proj = nn.Dense(
            self.config.hidden_size,
            kernel_init=nn.initializers.normal(
                self.config.hidden_size**-0.5 * self.config.initializer_factor
            ),
            **self.numerics,
        )

    def __call__(self, hidden_states: Array, attention_mask: Array | None) -> Array:
        queries = self.q_proj(hidden_states)
        keys = self.k_proj(hidden_states)
        values = self.v_proj(hidden_states)
        hidden_shape = (*queries.shape[:2], -1, self.head_dim)
        queries = queries.reshape(hidden_shape).swapaxes(1, 2)
        keys = keys.reshape(*keys.shape[:2], -1, self.head_dim).swapaxes(1, 2)
        values = values.reshape(*values.shape[:2], -1, self.head_dim).swapaxes(1, 2)
        attn_output = sdpa_attention_forward(queries, keys, values, attention_mask)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.out_proj(attn_output)


class CLIPMLP(Module):
    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        dense: Any = partial(nn.Dense, **self.numerics)
        init = nn.initializers.normal(
            (2 * self.config.hidden_size) ** -0.5 * self.config.initializer_factor
        )
        self.fc1 = dense(self.config.intermediate_size, kernel_init=init)
        self.fc2 = dense(
            self.config.hidden_size,
            kernel_init=nn.initializers.normal(
                self.config.hidden_size**-0.5
                * (2 * self.config.num_hidden_layers) ** -0.5
                * self.config.initializer_factor
            ),
        )

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.fc1(hidden_states)
        hidden_states = hidden_states * jax.nn.sigmoid(hidden_states * 1.702)
        return self.fc2(hidden_states)


class CLIPEncoderLayer(Module):
    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.self_attn = CLIPAttention(self.config, **self.numerics)
        norm: Any = partial(
            nn.LayerNorm, epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.layer_norm1 = norm()
        self.mlp = CLIPMLP(self.config, **self.numerics)
        self.layer_norm2 = norm()

    def __call__(self, hidden_states: Array, attention_mask: Array | None) -> Array:
        residual = hidden_states
        hidden_states = self.layer_norm1(hidden_states)
        hidden_states = self.self_attn(hidden_states, attention_mask)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.layer_norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class CLIPEncoder(Module):
    """Transformer encoder consisting of `config.num_hidden_layers` self attention layers."""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.layers = [
            CLIPEncoderLayer(self.config, **self.numerics)
            for _ in range(self.config.num_hidden_layers)
        ]

    def __call__(self, inputs_embeds: Array, attention_mask: Array | None) -> Array:
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask)
        return hidden_states


class CLIPTextModel(Module):
    """The text model from CLIP without any head or projection on top."""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.embeddings = CLIPTextEmbeddings(self.config, **self.numerics)
        self.encoder = CLIPEncoder(self.config, **self.numerics)
        self.final_layer_norm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )

    def __call__(
        self, input_ids: Array, attention_mask: Array | None, position_ids: Array | None
    ) -> tuple[Array, Array]:
        hidden_states = self.embeddings(input_ids, position_ids)
        padding_mask = (
            None if attention_mask is None else attention_mask.astype(bool)[:, None, None]
        )
        encoder_outputs = self.encoder(hidden_states, padding_mask)
        last_hidden_state = self.final_layer_norm(encoder_outputs)
        # The config gets updated `eos_token_id` from PR #24773 (so the use of extra new tokens
        # is possible)
        pooled_output = jnp.arange(input_ids.shape[0])
        pooled_output_2 = input_ids == 99
        pooled_output_2 = pooled_output_2.astype(jnp.int32)
        pooled_output_2 = pooled_output_2.argmax(axis=-1)
        pooled_output = last_hidden_state[pooled_output, pooled_output_2]
        return last_hidden_state, pooled_output


class CLIPTextModelWithProjection(Module):
    """The Clip Model with a projection layer on top (a linear layer on top of the pooled
    output)."""

    config: CLIPTextModelWithProjectionConfig

    def setup(self) -> None:
        self.text_model = CLIPTextModel(self.config, **self.numerics)
        init = nn.initializers.normal(
            self.config.hidden_size**-0.5 * self.config.initializer_factor
        )
        self.text_projection = nn.Dense(
            self.config.projection_dim, use_bias=False, kernel_init=init, **self.numerics
        )

    def __call__(
        self,
        input_ids: Array,
        attention_mask: Array | None = None,
        position_ids: Array | None = None,
    ) -> dict[str, Array]:
        demand_size(input_ids.shape[1] <= 20, "axis 1 of input_ids: up to 20")
        text_outputs_0, text_outputs_1 = self.text_model(input_ids, attention_mask, position_ids)
        text_embeds = self.text_projection(text_outputs_1)
        return {"text_embeds": text_embeds, "last_hidden_state": text_outputs_0}
