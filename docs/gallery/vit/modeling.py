"""ViTForImageClassification in Flax, ported from transformers.models.vit.modeling_vit."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import ViTForImageClassificationConfig


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


class ViTPatchEmbeddings(Module):
    """This class turns `pixel_values` of shape `(batch_size, num_channels, height, width)`
    into the initial `hidden_states` (patch embeddings) of shape `(batch_size, seq_length,
    hidden_size)` to be consumed by a Transformer."""

    config: ViTForImageClassificationConfig

    def setup(self) -> None:
        self.projection = nn.Conv(
            self.config.hidden_size,
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )

    def __call__(self, pixel_values: Array) -> Array:
        hidden = self.projection(jnp.moveaxis(pixel_values, 1, -1))
        return hidden.reshape(hidden.shape[0], -1, hidden.shape[-1])


class ViTAttention(Module):
    config: ViTForImageClassificationConfig

    def setup(self) -> None:
        self.head_dim = self.config.hidden_size // self.config.num_attention_heads
        init = nn.initializers.normal(self.config.initializer_range)
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


class ViTMLP(Module):
    config: ViTForImageClassificationConfig

    def setup(self) -> None:
        init = nn.initializers.normal(self.config.initializer_range)
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.fc1 = dense(self.config.intermediate_size)
        self.fc2 = dense(self.config.hidden_size)

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.fc1(hidden_states)
        hidden_states = jax.nn.gelu(hidden_states, approximate=False)
        return self.fc2(hidden_states)


class ViTEmbeddings(Module):
    """Construct the CLS token, position and patch embeddings."""

    config: ViTForImageClassificationConfig

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
        self.patch_embeddings = ViTPatchEmbeddings(self.config, **self.numerics)

    def __call__(self, pixel_values: Array) -> Array:
        embeddings = self.patch_embeddings(pixel_values)
        # add the [CLS] token to the embedded patch tokens
        cls_tokens = jnp.broadcast_to(
            self.cls_token, (pixel_values.shape[0], 1, self.cls_token.shape[2])
        )
        embeddings = jnp.concatenate([cls_tokens, embeddings], axis=1)
        return embeddings + self.position_embeddings


class ViTLayer(Module):
    config: ViTForImageClassificationConfig

    def setup(self) -> None:
        self.attention = ViTAttention(self.config, **self.numerics)
        norm: Any = partial(
            nn.LayerNorm, epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )
        self.layernorm_before = norm()
        self.layernorm_after = norm()
        self.mlp = ViTMLP(self.config, **self.numerics)

    def __call__(self, hidden_states: Array) -> Array:
        residual = hidden_states
        hidden_states = self.layernorm_before(hidden_states)
        hidden_states = self.attention(hidden_states)
        hidden_states = hidden_states + residual
        residual = hidden_states
        hidden_states = self.layernorm_after(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return hidden_states + residual


class ViTModel(Module):
    """The bare Vit Model outputting raw hidden-states without any specific head on top."""

    config: ViTForImageClassificationConfig

    def setup(self) -> None:
        self.embeddings = ViTEmbeddings(self.config, **self.numerics)
        self.layers = [
            ViTLayer(self.config, **self.numerics) for _ in range(self.config.num_hidden_layers)
        ]
        self.layernorm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )

    def __call__(self, pixel_values: Array) -> Array:
        embedding_output = self.embeddings(pixel_values)
        hidden_states = embedding_output
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.layernorm(hidden_states)


class ViTForImageClassification(Module):
    """ViT Model transformer with an image classification head on top (a linear layer on top of
    the final hidden state of the [CLS] token) e.g. for ImageNet."""

    config: ViTForImageClassificationConfig

    def setup(self) -> None:
        self.vit = ViTModel(self.config, **self.numerics)
        init = nn.initializers.normal(self.config.initializer_range)
        self.classifier = nn.Dense(self.config.num_labels, kernel_init=init, **self.numerics)

    def __call__(self, pixel_values: Array) -> dict[str, Array]:
        outputs = self.vit(pixel_values)
        pooled_output = outputs[:, 0]
        logits = self.classifier(pooled_output)
        return {"logits": logits}
