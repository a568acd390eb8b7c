"""Dinov2Model in Flax, ported from transformers.models.dinov2.modeling_dinov2."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import Dinov2Config


def trunc_normal(
    std: float, mean: float = 0.0, low: float = -2.0, high: float = 2.0
) -> nn.initializers.Initializer:
    """torch's trunc_normal_: normal draws between `low` and `high`, whatever `std` is."""
    draw = nn.initializers.truncated_normal(std, None, (low - mean) / std, (high - mean) / std)
    return lambda key, shape, dtype: mean + draw(key, shape, dtype)


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


class Dinov2LayerScale(Module):
    config: Dinov2Config

    def setup(self) -> None:
        self.lambda1 = self.cast_param("lambda1", nn.initializers.ones, (self.config.hidden_size,))

    def __call__(self, hidden_state: Array) -> Array:
        return hidden_state * self.lambda1


class Dinov2PatchEmbeddings(Module):
    """This class turns `pixel_values` of shape `(batch_size, num_channels, height, width)`
    into the initial `hidden_states` (patch embeddings) of shape `(batch_size, seq_length,
    hidden_size)` to be consumed by a Transformer."""

    config: Dinov2Config

    def setup(self) -> None:
        self.projection = nn.Conv(
            self.config.hidden_size,
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
            kernel_init=trunc_normal(self.config.initializer_range),
            **self.numerics,
        )

    def __call__(self, pixel_values: Array) -> Array:
        hidden = self.projection(jnp.moveaxis(pixel_values, 1, -1))
        return hidden.reshape(hidden.shape[0], -1, hidden.shape[-1])


class Dinov2Attention(Module):
    config: Dinov2Config

    def setup(self) -> None:
        self.head_dim = self.config.hidden_size // self.config.num_attention_heads
        init = trunc_normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.q_proj = dense(self.config.num_attention_heads * self.head_dim)
        self.k_proj = dense(self.config.num_attention_heads * self.head_dim)
        self.v_proj = dense(self.config.num_attention_heads * self.head_dim)
        self.o_proj = dense(self.config.hidden_size)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        key_states = self.k_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        value_states = self.v_proj(hidden_states).reshape(hidden_shape).swapaxes(1, 2)
        attn_output = sdpa_attention_forward(query_states, key_states, value_states)
        attn_output = attn_output.reshape(*attn_output.shape[:2], -1)
        return self.o_proj(attn_output)


class Dinov2MLP(Module):
    config: Dinov2Config

    def setup(self) -> None:
        init = trunc_normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.fc1 = dense(self.config.hidden_size * self.config.mlp_ratio)
        self.fc2 = dense(self.config.hidden_size)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.fc1(hidden_states)
        hidden_states = jax.nn.gelu(hidden_states, approximate=False)
        return self.fc2(hidden_states)


class Dinov2Embeddings(Module):
    """Construct the CLS token, mask token, position and patch embeddings."""

    config: Dinov2Config

    def setup(self) -> None:
        init = trunc_normal(self.config.initializer_range)
        self.cls_token = self.cast_param("cls_token", init, (1, 1, self.config.hidden_size))
        self.position_embeddings = self.cast_param(
            "position_embeddings",
            init,
            (
                1,
                self.config.image_size
                // self.config.patch_size
                * (self.config.image_size // self.config.patch_size)
                + 1,
                self.config.hidden_size,
            ),
        )
        self.patch_embeddings = Dinov2PatchEmbeddings(self.config, **self.numerics)

    def __call__(self, pixel_values: Array) -> Array:
        embeddings = self.patch_embeddings(pixel_values)
        cls_tokens = jnp.broadcast_to(
            self.cls_token, (pixel_values.shape[0], 1, self.cls_token.shape[2])
        )
        embeddings = jnp.concatenate([cls_tokens, embeddings], axis=1)
        return embeddings + self.position_embeddings


class Dinov2Layer(Module):
    """This corresponds to the Block class in the original implementation."""

    config: Dinov2Config

    def setup(self) -> None:
        norm: Any = partial(
            nn.LayerNorm, epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.norm1 = norm()
        self.attention = Dinov2Attention(self.config, **self.numerics)
        self.layer_scale1 = Dinov2LayerScale(self.config, **self.numerics)
        self.norm2 = norm()
        self.mlp = Dinov2MLP(self.config, **self.numerics)
        self.layer_scale2 = Dinov2LayerScale(self.config, **self.numerics)

    def __call__(self, hidden_states: Array) -> Array:
        residual = hidden_states
        hidden_states = self.norm1(hidden_states)
        hidden_states = self.attention(hidden_states)
        hidden_states = self.layer_scale1(hidden_states)
        hidden_states = hidden_states + residual
        residual = hidden_states
        hidden_states = self.norm2(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.layer_scale2(hidden_states)
        return hidden_states + residual


class Dinov2Encoder(Module):
    config: Dinov2Config

    def setup(self) -> None:
        self.layer = [
            Dinov2Layer(self.config, **self.numerics) for _ in range(self.config.num_hidden_layers)
        ]

    def __call__(self, hidden_states: Array) -> Array:
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        return hidden_states


class Dinov2Model(Module):
    """The bare Dinov2 Model outputting raw hidden-states without any specific head on top."""

    config: Dinov2Config

    def setup(self) -> None:
        self.embeddings = Dinov2Embeddings(self.config, **self.numerics)
        self.encoder = Dinov2Encoder(self.config, **self.numerics)
        self.layernorm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )

    def __call__(self, pixel_values: Array) -> dict[str, Array]:
        embedding_output = self.embeddings(pixel_values)
        encoder_outputs = self.encoder(embedding_output)
        sequence_output = self.layernorm(encoder_outputs)
        pooled_output = sequence_output[:, 0]
        return {"last_hidden_state": sequence_output, "pooler_output": pooled_output}
