"""AutoencoderKLQwenImage in Flax, ported from
diffusers.models.autoencoders.autoencoder_kl_qwenimage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import AutoencoderKLQwenImageConfig


def clamp(x: Array, low: Array | float | None = None, high: Array | float | None = None) -> Array:
    """`jnp.clip`, with torch's gradient of an element exactly at a bound: 1, not a half."""
    if low is not None:
        x = jnp.where(x >= low, x, jnp.maximum(x, low))  # NaN if either is
    if high is not None:
        x = jnp.where(x <= high, x, jnp.minimum(x, high))
    return x


def safe_sqrt(x: Array) -> Array:
    """The square root, with torch's gradient of a norm or deviation that is 0: 0, not NaN."""
    zero = x == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, x)))


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any) -> Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


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
    def numerics(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype, "precision": self.precision}

    def cast_param(self, name: str, init: Any, shape: tuple[int, ...]) -> Array:
        """A weight in the dtype of the computation."""
        return jnp.asarray(self.param(name, init, shape, self.param_dtype), self.dtype)


class QwenImageCausalConv3d(Module):
    """A custom 3D causal convolution layer with feature caching support."""

    input_channels: int
    in_channels: int
    out_channels: int

    def setup(self) -> None:
        self.kernel = self.cast_param(
            "kernel",
            torch_uniform,
            (
                self.input_channels,
                self.input_channels,
                self.input_channels,
                self.in_channels,
                self.out_channels,
            ),
        )
        init = uniform_within((self.in_channels * 27) ** -0.5)
        self.bias = self.cast_param("bias", init, (self.out_channels,))

    def __call__(self, x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, 0), (2, 0), (1, 1), (1, 1)))
        return (
            jax.lax.conv_general_dilated(
                x,
                self.kernel.transpose((4, 3, 0, 1, 2)),
                (1, 1, 1),
                [(0, 0), (0, 0), (0, 0)],
                dimension_numbers=("NCDHW", "OIDHW", "NCDHW"),
            )
            + self.bias[:, None, None, None]
        )


class QwenImageRMS_norm(Module):
    """A custom RMS normalization layer."""

    shape: int
    scale: float

    def setup(self) -> None:
        self.gamma = self.cast_param("gamma", nn.initializers.ones, (self.shape, 1, 1, 1))

    def __call__(self, x: Array) -> Array:
        normalized = x.astype(jnp.float32)
        normalized = (
            normalized / clamp(safe_sqrt(jnp.square(normalized).sum(axis=1, keepdims=True)), 1e-12)
        ).astype(x.dtype)
        return normalized * self.scale * self.gamma


class QwenImageCausalConv3d2(Module):
    """A custom 3D causal convolution layer with feature caching support."""

    in_channels: int
    out_channels: int

    def setup(self) -> None:
        self.kernel = self.cast_param(
            "kernel", torch_uniform, (1, 1, 1, self.in_channels, self.out_channels)
        )
        init = uniform_within(self.in_channels**-0.5)
        self.bias = self.cast_param("bias", init, (self.out_channels,))

    def __call__(self, x: Array) -> Array:
        return (
            jax.lax.conv_general_dilated(
                x,
                self.kernel.transpose((4, 3, 0, 1, 2)),
                (1, 1, 1),
                [(0, 0), (0, 0), (0, 0)],
                dimension_numbers=("NCDHW", "OIDHW", "NCDHW"),
            )
            + self.bias[:, None, None, None]
        )


class QwenImageRMS_norm2(Module):
    """A custom RMS normalization layer."""

    def setup(self) -> None:
        self.gamma = self.cast_param("gamma", nn.initializers.ones, (32, 1, 1))

    def __call__(self, x: Array) -> Array:
        normalized = x.astype(jnp.float32)
        normalized = (
            normalized / clamp(safe_sqrt(jnp.square(normalized).sum(axis=1, keepdims=True)), 1e-12)
        ).astype(x.dtype)
        return normalized * 5.656854249492381 * self.gamma


class QwenImageResidualBlock(Module):
    """A custom residual block module."""

    in_dim: int
    scale: float

    def setup(self) -> None:
        self.norm1 = QwenImageRMS_norm(shape=self.in_dim, scale=self.scale, **self.numerics)
        self.conv1 = QwenImageCausalConv3d(
            input_channels=3, in_channels=self.in_dim, out_channels=self.in_dim, **self.numerics
        )
        self.norm2 = QwenImageRMS_norm(shape=self.in_dim, scale=self.scale, **self.numerics)
        self.conv2 = QwenImageCausalConv3d(
            input_channels=3, in_channels=self.in_dim, out_channels=self.in_dim, **self.numerics
        )

    def __call__(self, x: Array) -> Array:
        # First normalization and activation
        x_2 = self.norm1(x)
        x_2 = jax.nn.silu(x_2)
        x_2 = self.conv1(x_2)
        # Second normalization and activation
        x_2 = self.norm2(x_2)
        x_2 = jax.nn.silu(x_2)
        x_2 = self.conv2(x_2)
        # Add residual connection
        return x_2 + x


class QwenImageResample(Module):
    """A custom resampling module for 2D and 3D data."""

    def setup(self) -> None:
        self.resample = nn.Sequential(
            [
                lambda x: jnp.moveaxis(jnp.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1))), 1, -1),
                nn.Conv(
                    16,
                    kernel_size=(3, 3),
                    strides=(2, 2),
                    padding="VALID",
                    kernel_init=torch_uniform,
                    bias_init=uniform_within((16 * 9) ** -0.5),
                    **self.numerics,
                ),
            ]
        )

    def __call__(self, x: Array) -> Array:
        x_2 = x.swapaxes(1, 2)
        x = x_2.reshape(x_2.shape[0], x.shape[1], x_2.shape[3], x_2.shape[3])
        x = self.resample(x)
        x = jnp.moveaxis(x, -1, 1).reshape(x.shape[0], 1, x.shape[3], x.shape[3], x.shape[3])
        return x.swapaxes(1, 2)


class QwenImageResidualBlock2(Module):
    """A custom residual block module."""

    def setup(self) -> None:
        self.norm1 = QwenImageRMS_norm(shape=16, scale=4.0, **self.numerics)
        qwen_image_causal_conv: Any = partial(
            QwenImageCausalConv3d, input_channels=3, out_channels=32, **self.numerics
        )
        self.conv1 = qwen_image_causal_conv(in_channels=16)
        self.norm2 = QwenImageRMS_norm(shape=32, scale=5.656854249492381, **self.numerics)
        self.conv2 = qwen_image_causal_conv(in_channels=32)
        self.conv_shortcut = QwenImageCausalConv3d2(
            in_channels=16, out_channels=32, **self.numerics
        )

    def __call__(self, x: Array) -> Array:
        # Apply shortcut connection
        h = self.conv_shortcut(x)
        # First normalization and activation
        x = self.norm1(x)
        x = jax.nn.silu(x)
        x = self.conv1(x)
        # Second normalization and activation
        x = self.norm2(x)
        x = jax.nn.silu(x)
        x = self.conv2(x)
        # Add residual connection
        return x + h


class QwenImageAttentionBlock(Module):
    """Causal self-attention with a single head."""

    def setup(self) -> None:
        self.norm = QwenImageRMS_norm2(**self.numerics)
        conv: Any = partial(
            nn.Conv,
            kernel_size=(1, 1),
            padding="VALID",
            kernel_init=torch_uniform,
            bias_init=uniform_within(32**-0.5),
            **self.numerics,
        )
        self.to_qkv = conv(96)
        self.proj = conv(32)

    def __call__(self, x: Array) -> Array:
        identity = x
        x = x.swapaxes(1, 2)
        x = x.reshape(x.shape[0], identity.shape[1], x.shape[3], x.shape[3])
        x = self.norm(x)
        # compute query, key, value
        qkv = self.to_qkv(jnp.moveaxis(x, 1, -1))
        qkv = jnp.moveaxis(qkv, -1, 1).reshape(qkv.shape[0], 1, x.shape[1] * 3, -1)
        qkv = qkv.swapaxes(2, 3)
        q, k, v = jnp.split(qkv, 3, axis=-1)
        # apply attention
        x_2 = jax.nn.dot_product_attention(
            q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2)
        ).swapaxes(1, 2)
        x_2 = x_2.squeeze(1)
        x_3 = x_2.swapaxes(1, 2)
        x = x_3.reshape(*x_3.shape[:2], x.shape[3], x.shape[3])
        # output projection
        x = self.proj(jnp.moveaxis(x, 1, -1))
        x = jnp.moveaxis(x, -1, 1).reshape(x.shape[0], 1, x_2.shape[2], x.shape[1], x.shape[1])
        x = x.swapaxes(1, 2)
        return x + identity


class QwenImageResample2(Module):
    """A custom resampling module for 2D and 3D data."""

    def setup(self) -> None:
        self.resample = nn.Sequential(
            [
                lambda x: jnp.moveaxis(
                    jnp.repeat(jnp.repeat(x.astype(jnp.float32), 2, axis=-2), 2, axis=-1).astype(
                        x.dtype
                    ),
                    1,
                    -1,
                ),
                nn.Conv(
                    16,
                    kernel_size=(3, 3),
                    padding=((1, 1), (1, 1)),
                    kernel_init=torch_uniform,
                    bias_init=uniform_within((32 * 9) ** -0.5),
                    **self.numerics,
                ),
            ]
        )

    def __call__(self, x: Array) -> Array:
        x_2 = x.swapaxes(1, 2)
        x = x_2.reshape(x_2.shape[0], x.shape[1], x_2.shape[3], x_2.shape[3])
        x_2 = self.resample(x)
        x = jnp.moveaxis(x_2, -1, 1).reshape(x_2.shape[0], 1, x_2.shape[3], x.shape[1], x.shape[1])
        return x.swapaxes(1, 2)


class QwenImageMidBlock(Module):
    """Middle block for QwenImageVAE encoder and decoder."""

    def setup(self) -> None:
        self.attentions = [QwenImageAttentionBlock(**self.numerics)]
        self.resnets = [
            QwenImageResidualBlock(in_dim=32, scale=5.656854249492381, **self.numerics)
            for _ in range(2)
        ]

    def __call__(self, x: Array) -> Array:
        # First residual block
        x = self.resnets[0](x)
        for attention in self.attentions:
            x = attention(x)
        x = self.resnets[1](x)
        return x


class QwenImageUpBlock(Module):
    """A block that handles upsampling for the QwenImageVAE decoder."""

    config: AutoencoderKLQwenImageConfig
    in_dim: int
    scale: float
    has_upsamplers: bool

    def setup(self) -> None:
        self.resnets = [
            QwenImageResidualBlock(in_dim=self.in_dim, scale=self.scale, **self.numerics)
            for _ in range(self.config.num_res_blocks + 1)
        ]
        if self.has_upsamplers:
            self.upsamplers = [QwenImageResample2(**self.numerics)]

    def __call__(self, x: Array) -> Array:
        for resnet in self.resnets:
            x = resnet(x)
        if self.has_upsamplers:
            for upsampler in self.upsamplers:
                x = upsampler(x)
        return x


class QwenImageEncoder3d(Module):
    """A 3D encoder module."""

    config: AutoencoderKLQwenImageConfig

    def setup(self) -> None:
        self.conv_in = QwenImageCausalConv3d(
            input_channels=self.config.input_channels,
            in_channels=self.config.input_channels,
            out_channels=16,
            **self.numerics,
        )
        self.down_blocks = [
            QwenImageResidualBlock(in_dim=16, scale=4.0, **self.numerics),
            QwenImageResample(**self.numerics),
            QwenImageResidualBlock2(**self.numerics),
        ]
        self.mid_block = QwenImageMidBlock(**self.numerics)
        self.norm_out = QwenImageRMS_norm(shape=32, scale=5.656854249492381, **self.numerics)
        self.conv_out = QwenImageCausalConv3d(
            input_channels=3, in_channels=32, out_channels=self.config.z_dim * 2, **self.numerics
        )

    def __call__(self, x: Array) -> Array:
        x = self.conv_in(x)
        for down_block in self.down_blocks:
            x = down_block(x)
        # middle
        x = self.mid_block(x)
        # head
        x = self.norm_out(x)
        x = jax.nn.silu(x)
        return self.conv_out(x)


class QwenImageDecoder3d(Module):
    """A 3D decoder module."""

    config: AutoencoderKLQwenImageConfig

    def setup(self) -> None:
        self.conv_in = QwenImageCausalConv3d(
            input_channels=3, in_channels=self.config.z_dim, out_channels=32, **self.numerics
        )
        self.mid_block = QwenImageMidBlock(**self.numerics)
        qwen_image_up_block: Any = partial(QwenImageUpBlock, **self.numerics)
        self.up_blocks = [
            qwen_image_up_block(
                self.config, in_dim=32, scale=5.656854249492381, has_upsamplers=True
            ),
            qwen_image_up_block(self.config, in_dim=16, scale=4.0, has_upsamplers=False),
        ]
        self.norm_out = QwenImageRMS_norm(shape=16, scale=4.0, **self.numerics)
        self.conv_out = QwenImageCausalConv3d(
            input_channels=self.config.input_channels,
            in_channels=16,
            out_channels=self.config.input_channels,
            **self.numerics,
        )

    def __call__(self, x: Array) -> Array:
        x = self.conv_in(x)
        # middle
        x = self.mid_block(x)
        for up_block in self.up_blocks:
            x = up_block(x)
        # head
        x = self.norm_out(x)
        x = jax.nn.silu(x)
        return self.conv_out(x)


class AutoencoderKLQwenImage(Module):
    """A VAE model with KL loss for encoding videos into latents and decoding latent
    representations into videos."""

    config: AutoencoderKLQwenImageConfig

    def setup(self) -> None:
        self.encoder = QwenImageEncoder3d(self.config, **self.numerics)
        self.quant_conv = QwenImageCausalConv3d2(
            in_channels=self.config.z_dim * 2, out_channels=self.config.z_dim * 2, **self.numerics
        )
        self.post_quant_conv = QwenImageCausalConv3d2(
            in_channels=self.config.z_dim, out_channels=self.config.z_dim, **self.numerics
        )
        self.decoder = QwenImageDecoder3d(self.config, **self.numerics)

    def __call__(self, sample: Array) -> dict[str, Array]:
        out = self.encoder(sample)
        enc = self.quant_conv(out)
        mean, _ = jnp.split(enc, 2, axis=1)
        x = self.post_quant_conv(mean)
        out = self.decoder(x)
        out = clamp(out, -1.0, 1.0)
        return {"sample": out}
