"""CLIPVisionModelWithProjection in Flax, ported from transformers.models.clip.modeling_clip."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import CLIPVisionModelWithProjectionConfig


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


class CLIPVisionEmbeddings(Module):
    config: CLIPVisionModelWithProjectionConfig

    def setup(self) -> None:
        self.num_positions = (self.config.image_size // self.config.patch_size) ** 2 + 1
        self.class_embedding = self.cast_param(
            "class_embedding",
            nn.initializers.normal(self.config.hidden_size**-0.5 * self.config.initializer_factor),
            (self.config.hidden_size,),
        )
        self.position_ids = jnp.arange(self.num_positions, dtype=jnp.int32)[None]
        init = nn.initializers.normal(
            self.config.initializer_range * self.config.initializer_factor
        )
        self.patch_embedding = nn.Conv(
            self.config.hidden_size,
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
            use_bias=False,
            kernel_init=init,
            **self.numerics,
        )
        self.position_embedding = nn.Embed(
            self.num_positions, self.config.hidden_size, embedding_init=init, **self.dtypes
        )

    def __call__(self, pixel_values: Array) -> Array:
        patch_embeds = self.patch_embedding(jnp.moveaxis(pixel_values, 1, -1))
        patch_embeds = patch_embeds.reshape(patch_embeds.shape[0], -1, patch_embeds.shape[-1])
        class_embeds = jnp.broadcast_to(
            self.class_embedding, (pixel_values.shape[0], 1, self.class_embedding.shape[0])
        )
        embeddings = jnp.concatenate([class_embeds, patch_embeds], axis=1)
        return embeddings + self.position_embedding(self.position_ids)


class CLIPAttention(Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    config: CLIPVisionModelWithProjectionConfig

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

    def __call__(self, hidden_states: Array) -> Array:
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


class CLIPMLP(Module):
    config: CLIPVisionModelWithProjectionConfig

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
    config: CLIPVisionModelWithProjectionConfig

    def setup(self) -> None:
        self.self_attn = CLIPAttention(self.config, **self.numerics)
        norm: Any = partial(
            nn.LayerNorm, epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.layer_norm1 = norm()
        self.mlp = CLIPMLP(self.config, **self.numerics)
        self.layer_norm2 = norm()

    def __call__(self, hidden_states: Array) -> Array:
        residual = hidden_states
        hidden_states = self.layer_norm1(hidden_states)
        hidden_states = self.self_attn(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.layer_norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return residual + hidden_states


class CLIPEncoder(Module):
    """Transformer encoder consisting of `config.num_hidden_layers` self attention layers."""

    config: CLIPVisionModelWithProjectionConfig

    def setup(self) -> None:
        self.layers = [
            CLIPEncoderLayer(self.config, **self.numerics)
            for _ in range(self.config.num_hidden_layers)
        ]

    def __call__(self, inputs_embeds: Array) -> Array:
        hidden_states = inputs_embeds
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return hidden_states


class CLIPVisionModel(Module):
    """The vision model from CLIP without any head or projection on top."""

    config: CLIPVisionModelWithProjectionConfig

    def setup(self) -> None:
        self.embeddings = CLIPVisionEmbeddings(self.config, **self.numerics)
        norm: Any = partial(
            nn.LayerNorm, epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.pre_layrnorm = norm()
        self.encoder = CLIPEncoder(self.config, **self.numerics)
        self.post_layernorm = norm()

    def __call__(self, pixel_values: Array) -> tuple[Array, Array]:
        hidden_states = self.embeddings(pixel_values)
        hidden_states = self.pre_layrnorm(hidden_states)
        encoder_outputs = self.encoder(hidden_states)
        pooled_output = encoder_outputs[:, 0]
        pooled_output = self.post_layernorm(pooled_output)
        return encoder_outputs, pooled_output


class CLIPVisionModelWithProjection(Module):
    """The Clip Model with a projection layer on top (a linear layer on top of the pooled
    output)."""

    config: CLIPVisionModelWithProjectionConfig

    def setup(self) -> None:
        self.vision_model = CLIPVisionModel(self.config, **self.numerics)
        init = nn.initializers.normal(
            self.config.hidden_size**-0.5 * self.config.initializer_factor
        )
        self.visual_projection = nn.Dense(
            self.config.projection_dim, use_bias=False, kernel_init=init, **self.numerics
        )

    def __call__(self, pixel_values: Array) -> dict[str, Array]:
        vision_outputs_0, vision_outputs_1 = self.vision_model(pixel_values)
        image_embeds = self.visual_projection(vision_outputs_1)
        return {"image_embeds": image_embeds, "last_hidden_state": vision_outputs_0}
