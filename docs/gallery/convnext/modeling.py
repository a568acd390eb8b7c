"""ConvNextForImageClassification in Flax, ported from
transformers.models.convnext.modeling_convnext."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import ConvNextForImageClassificationConfig


def layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    axes: int = 1,
) -> Array:
    """The mean of the last axes to 0 and their variance to 1, then weight and bias."""
    last = tuple(range(-axes, 0))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(axis=last, keepdims=True)
    variance = wide.var(axis=last, keepdims=True)
    wide = (wide - mean) * jax.lax.rsqrt(variance + eps)
    if weight is not None:
        wide = wide * weight
    if bias is not None:
        wide = wide + bias
    return wide.astype(x.dtype)


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


class ConvNextLayerNorm(Module):
    """LayerNorm that supports two data formats: channels_last (default) or channels_first."""

    features: int

    def setup(self) -> None:
        self.scale = self.cast_param("scale", nn.initializers.ones, (self.features,))
        self.bias = self.cast_param("bias", nn.initializers.zeros, (self.features,))

    def __call__(self, features: Array) -> Array:
        return layer_norm(features, weight=self.scale, bias=self.bias, eps=1e-6)


class ConvNextEmbeddings(Module):
    """This class is comparable to (and inspired by) the SwinEmbeddings class found in
    src/transformers/models/swin/modeling_swin.py."""

    config: ConvNextForImageClassificationConfig

    def setup(self) -> None:
        self.patch_embeddings = nn.Conv(
            self.config.hidden_sizes[0],
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
            kernel_init=nn.initializers.normal(self.config.initializer_range),
            **self.numerics,
        )
        self.layernorm = ConvNextLayerNorm(features=8, **self.numerics)

    def __call__(self, pixel_values: Array) -> Array:
        embeddings = self.patch_embeddings(jnp.moveaxis(pixel_values, 1, -1))
        return self.layernorm(embeddings)


class ConvNextLayer(Module):
    """This corresponds to the `Block` class in the original implementation."""

    config: ConvNextForImageClassificationConfig
    dim: int
    features: int
    features_2: int

    def setup(self) -> None:
        self.layer_scale_parameter = self.cast_param(
            "layer_scale_parameter",
            nn.initializers.constant(self.config.layer_scale_init_value),
            (self.dim,),
        )
        init = nn.initializers.normal(self.config.initializer_range)
        self.dwconv = nn.Conv(
            self.dim,
            kernel_size=(7, 7),
            padding=((3, 3), (3, 3)),
            feature_group_count=self.dim,
            kernel_init=init,
            **self.numerics,
        )
        self.layernorm = ConvNextLayerNorm(features=self.features, **self.numerics)
        dense: Any = partial(nn.Dense, kernel_init=init, **self.numerics)
        self.pwconv1 = dense(self.features_2)
        self.pwconv2 = dense(self.dim)

    def __call__(self, features: Array) -> Array:
        residual = features
        features = self.dwconv(features)
        features = self.layernorm(features)
        features = self.pwconv1(features)
        features = jax.nn.gelu(features, approximate=False)
        features = self.pwconv2(features)
        features = self.layer_scale_parameter * features
        return residual + features


class ConvNextStage(Module):
    """ConvNeXT stage, consisting of an optional downsampling layer + multiple residual blocks."""

    config: ConvNextForImageClassificationConfig
    dim: int
    features_2: int

    def setup(self) -> None:
        self.layers = [
            ConvNextLayer(
                self.config, dim=self.dim, features=8, features_2=self.features_2, **self.numerics
            )
            for _ in range(self.config.depths[0])
        ]

    def __call__(self, features: Array) -> Array:
        for layer in self.layers:
            features = layer(features)
        return features


class ConvNextStage2(Module):
    """ConvNeXT stage, consisting of an optional downsampling layer + multiple residual blocks."""

    config: ConvNextForImageClassificationConfig
    features: int
    out_channels: int
    dim: int
    features_2: int
    features_2_2: int
    depth: int

    def setup(self) -> None:
        self.downsampling_layer = [
            ConvNextLayerNorm(features=self.features, **self.numerics),
            nn.Conv(
                self.out_channels,
                kernel_size=(2, 2),
                strides=(2, 2),
                padding="VALID",
                kernel_init=nn.initializers.normal(self.config.initializer_range),
                **self.numerics,
            ),
        ]
        self.layers = [
            ConvNextLayer(
                self.config,
                dim=self.dim,
                features=self.features_2,
                features_2=self.features_2_2,
                **self.numerics,
            )
            for _ in range(self.depth)
        ]

    def __call__(self, features: Array) -> Array:
        for downsampling_layer in self.downsampling_layer:
            features = downsampling_layer(features)
        for layer in self.layers:
            features = layer(features)
        return features


class ConvNextEncoder(Module):
    config: ConvNextForImageClassificationConfig

    def setup(self) -> None:
        conv_next_stage: Any = partial(ConvNextStage2, **self.numerics)
        self.stages = [
            ConvNextStage(
                self.config,
                dim=self.config.hidden_sizes[0],
                features_2=4 * self.config.hidden_sizes[0],
                **self.numerics,
            ),
            conv_next_stage(
                self.config,
                features=8,
                out_channels=self.config.hidden_sizes[1],
                dim=self.config.hidden_sizes[1],
                features_2=12,
                features_2_2=4 * self.config.hidden_sizes[1],
                depth=self.config.depths[1],
            ),
            conv_next_stage(
                self.config,
                features=12,
                out_channels=self.config.hidden_sizes[2],
                dim=self.config.hidden_sizes[2],
                features_2=16,
                features_2_2=4 * self.config.hidden_sizes[2],
                depth=self.config.depths[2],
            ),
            conv_next_stage(
                self.config,
                features=16,
                out_channels=self.config.hidden_sizes[3],
                dim=self.config.hidden_sizes[3],
                features_2=20,
                features_2_2=4 * self.config.hidden_sizes[3],
                depth=self.config.depths[3],
            ),
        ]

    def __call__(self, hidden_states: Array) -> Array:
        for stage in self.stages:
            hidden_states = stage(hidden_states)
        return hidden_states


class ConvNextModel(Module):
    """The bare Convnext Model outputting raw hidden-states without any specific head on top."""

    config: ConvNextForImageClassificationConfig

    def setup(self) -> None:
        self.embeddings = ConvNextEmbeddings(self.config, **self.numerics)
        self.encoder = ConvNextEncoder(self.config, **self.numerics)
        self.layernorm = nn.LayerNorm(
            epsilon=self.config.layer_norm_eps, use_fast_variance=False, **self.dtypes
        )

    def __call__(self, pixel_values: Array) -> Array:
        embedding_output = self.embeddings(pixel_values)
        encoder_outputs = self.encoder(embedding_output)
        return self.layernorm(encoder_outputs.mean(axis=(1, 2)))


class ConvNextForImageClassification(Module):
    """ConvNext Model with an image classification head on top (a linear layer on top of the
    pooled features), e.g. for ImageNet."""

    config: ConvNextForImageClassificationConfig

    def setup(self) -> None:
        self.convnext = ConvNextModel(self.config, **self.numerics)
        init = nn.initializers.normal(self.config.initializer_range)
        self.classifier = nn.Dense(self.config.num_labels, kernel_init=init, **self.numerics)

    def __call__(self, pixel_values: Array) -> dict[str, Array]:
        outputs = self.convnext(pixel_values)
        logits = self.classifier(outputs)
        return {"logits": logits}
