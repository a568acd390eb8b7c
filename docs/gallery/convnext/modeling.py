"""ConvNextForImageClassification in Flax, ported from
transformers.models.convnext.modeling_convnext."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from .config import ConvNextForImageClassificationConfig


def layer_norm(
    x: jax.Array,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
    axes: int = 1,
) -> jax.Array:
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


class ConvNextLayerNorm(nn.Module):
    """LayerNorm that supports two data formats: channels_last (default) or channels_first."""

    features: int

    def setup(self) -> None:
        self.scale = self.param("scale", nn.initializers.ones, (self.features,))
        self.bias = self.param("bias", nn.initializers.zeros, (self.features,))

    def __call__(self, features: jax.Array) -> jax.Array:
        return layer_norm(features, weight=self.scale, bias=self.bias, eps=1e-06)


class ConvNextEmbeddings(nn.Module):
    """This class is comparable to (and inspired by) the SwinEmbeddings class found in
    src/transformers/models/swin/modeling_swin.py."""

    config: ConvNextForImageClassificationConfig

    def setup(self) -> None:
        self.patch_embeddings = nn.Conv(
            self.config.hidden_sizes[0],
            kernel_size=(self.config.patch_size, self.config.patch_size),
            strides=(self.config.patch_size, self.config.patch_size),
            padding="VALID",
        )
        self.layernorm = ConvNextLayerNorm(features=8)

    def __call__(self, pixel_values: jax.Array) -> jax.Array:
        embeddings = self.patch_embeddings(jnp.moveaxis(pixel_values, 1, -1))
        return self.layernorm(embeddings)


class ConvNextLayer(nn.Module):
    """This corresponds to the `Block` class in the original implementation."""

    dim: int
    features: int

    def setup(self) -> None:
        self.layer_scale_parameter = self.param(
            "layer_scale_parameter", nn.initializers.normal(0.02), (self.dim,)
        )
        self.dwconv = nn.Conv(
            self.dim, kernel_size=(7, 7), padding=((3, 3), (3, 3)), feature_group_count=self.dim
        )
        self.layernorm = ConvNextLayerNorm(features=self.dim)
        self.pwconv1 = nn.Dense(self.features)
        self.pwconv2 = nn.Dense(self.dim)

    def __call__(self, features: jax.Array) -> jax.Array:
        residual = features
        features = self.dwconv(features)
        features = self.layernorm(features)
        features = self.pwconv1(features)
        features = jax.nn.gelu(features, approximate=False)
        features = self.pwconv2(features)
        features = self.layer_scale_parameter * features
        return residual + features


class ConvNextStage(nn.Module):
    """ConvNeXT stage, consisting of an optional downsampling layer + multiple residual blocks."""

    def setup(self) -> None:
        self.layers = [ConvNextLayer(dim=8, features=32) for _ in range(2)]

    def __call__(self, features: jax.Array) -> jax.Array:
        for layer in self.layers:
            features = layer(features)
        return features


class ConvNextStage2(nn.Module):
    """ConvNeXT stage, consisting of an optional downsampling layer + multiple residual blocks."""

    features: int
    out_channels: int
    features_2: int
    depth: int

    def setup(self) -> None:
        self.downsampling_layer = [
            ConvNextLayerNorm(features=self.features),
            nn.Conv(self.out_channels, kernel_size=(2, 2), strides=(2, 2), padding="VALID"),
        ]
        self.layers = [
            ConvNextLayer(dim=self.out_channels, features=self.features_2)
            for _ in range(self.depth)
        ]

    def __call__(self, features: jax.Array) -> jax.Array:
        for downsampling_layer in self.downsampling_layer:
            features = downsampling_layer(features)
        for layer in self.layers:
            features = layer(features)
        return features


class ConvNextEncoder(nn.Module):
    def setup(self) -> None:
        self.stages = [
            ConvNextStage(),
            ConvNextStage2(features=8, out_channels=12, features_2=48, depth=2),
            ConvNextStage2(features=12, out_channels=16, features_2=64, depth=3),
            ConvNextStage2(features=16, out_channels=20, features_2=80, depth=2),
        ]

    def __call__(self, hidden_states: jax.Array) -> jax.Array:
        for stage in self.stages:
            hidden_states = stage(hidden_states)
        return hidden_states


class ConvNextModel(nn.Module):
    """The bare Convnext Model outputting raw hidden-states without any specific head on top."""

    config: ConvNextForImageClassificationConfig

    def setup(self) -> None:
        self.embeddings = ConvNextEmbeddings(self.config)
        self.encoder = ConvNextEncoder()
        self.layernorm = nn.LayerNorm(epsilon=self.config.layer_norm_eps, use_fast_variance=False)

    def __call__(self, pixel_values: jax.Array) -> jax.Array:
        embedding_output = self.embeddings(pixel_values)
        encoder_outputs = self.encoder(embedding_output)
        return self.layernorm(encoder_outputs.mean(axis=(1, 2)))


class ConvNextForImageClassification(nn.Module):
    """ConvNext Model with an image classification head on top (a linear layer on top of the
    pooled features), e.g. for ImageNet."""

    config: ConvNextForImageClassificationConfig

    def setup(self) -> None:
        self.convnext = ConvNextModel(self.config)
        self.classifier = nn.Dense(self.config.num_labels)

    def __call__(self, pixel_values: jax.Array) -> dict[str, jax.Array]:
        outputs = self.convnext(pixel_values)
        logits = self.classifier(outputs)
        return {"logits": logits}
