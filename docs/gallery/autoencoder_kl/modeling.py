"""AutoencoderKL in Flax, ported from diffusers.models.autoencoders.autoencoder_kl."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from .config import AutoencoderKLConfig


def torch_uniform(key: Any, shape: Sequence[int], dtype: Any) -> Array:
    """torch's default for the weight of a Linear or a Conv: uniform within 1 / sqrt(fan_in)."""
    return nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")(key, shape, dtype)


def uniform_within(bound: float) -> nn.initializers.Initializer:
    """Draws between -bound and bound."""
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


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


class ResnetBlock2D(Module):
    """A Resnet block."""

    groups: int
    in_channels: int
    num_groups: int
    out_channels: int
    conv_2d_out_channels: int
    use_in_shortcut: bool

    def setup(self) -> None:
        norm: Any = partial(nn.GroupNorm, epsilon=1e-6, use_fast_variance=False, **self.dtypes)
        self.norm1 = norm(num_groups=self.groups)
        conv: Any = partial(nn.Conv, kernel_init=torch_uniform, **self.numerics)
        init = uniform_within((self.in_channels * 9) ** -0.5)
        self.conv1 = conv(
            self.out_channels, kernel_size=(3, 3), padding=((1, 1), (1, 1)), bias_init=init
        )
        self.norm2 = norm(num_groups=self.num_groups)
        self.conv2 = conv(
            self.conv_2d_out_channels,
            kernel_size=(3, 3),
            padding=((1, 1), (1, 1)),
            bias_init=uniform_within((self.out_channels * 9) ** -0.5),
        )
        if self.use_in_shortcut:
            self.conv_shortcut = conv(
                self.conv_2d_out_channels,
                kernel_size=(1, 1),
                padding="VALID",
                bias_init=uniform_within(self.in_channels**-0.5),
            )

    def __call__(self, input_tensor: Array) -> Array:
        hidden_states = self.norm1(input_tensor)
        hidden_states = jax.nn.silu(hidden_states)
        hidden_states = self.conv1(hidden_states)
        hidden_states = self.norm2(hidden_states)
        hidden_states = jax.nn.silu(hidden_states)
        hidden_states = self.conv2(hidden_states)
        if self.use_in_shortcut:
            input_tensor = self.conv_shortcut(input_tensor)
        return input_tensor + hidden_states


class Downsample2D(Module):
    """A 2D downsampling layer with an optional convolution."""

    config: AutoencoderKLConfig

    def setup(self) -> None:
        self.conv = nn.Conv(
            16,
            kernel_size=(3, 3),
            strides=(2, 2),
            padding="VALID",
            kernel_init=torch_uniform,
            bias_init=uniform_within((self.config.encoder_channels * 9) ** -0.5),
            **self.numerics,
        )

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = jnp.pad(
            jnp.moveaxis(hidden_states, -1, 1), ((0, 0), (0, 0), (0, 1), (0, 1))
        )
        return self.conv(jnp.moveaxis(hidden_states, 1, -1))


class Attention(Module):
    """A cross attention layer."""

    config: AutoencoderKLConfig

    def setup(self) -> None:
        self.inner_kv_dim = self.config.block_out_channels[-1] * (
            self.config.block_out_channels[-1] // self.config.block_out_channels[-1]
        )
        self.group_norm = nn.GroupNorm(
            num_groups=self.config.norm_num_groups,
            epsilon=1e-6,
            use_fast_variance=False,
            **self.dtypes,
        )
        init = uniform_within(self.config.block_out_channels[-1] ** -0.5)
        dense: Any = partial(nn.Dense, kernel_init=torch_uniform, bias_init=init, **self.numerics)
        self.to_q = dense(self.inner_kv_dim)
        self.to_k = dense(self.inner_kv_dim)
        self.to_v = dense(self.inner_kv_dim)
        self.to_out = [
            nn.Dense(
                self.config.block_out_channels[-1],
                kernel_init=torch_uniform,
                bias_init=uniform_within(self.inner_kv_dim**-0.5),
                **self.numerics,
            )
        ]

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states_2 = hidden_states.reshape(hidden_states.shape[0], -1, hidden_states.shape[-1])
        hidden_states_2 = self.group_norm(hidden_states_2)
        query = self.to_q(hidden_states_2)
        key = self.to_k(hidden_states_2)
        value = self.to_v(hidden_states_2)
        query = query.reshape(query.shape[0], -1, 1, key.shape[2])
        key = key.reshape(key.shape[0], -1, 1, key.shape[2]).swapaxes(1, 2)
        value = value.reshape(value.shape[0], -1, 1, key.shape[3])
        hidden_states_2 = jax.nn.dot_product_attention(query, key.swapaxes(1, 2), value)
        hidden_states_2 = hidden_states_2.reshape(hidden_states_2.shape[0], -1, key.shape[3])
        for to_out in self.to_out:
            # linear proj
            hidden_states_2 = to_out(hidden_states_2)
        hidden_states_2 = hidden_states_2.swapaxes(-1, -2)
        hidden_states_2 = hidden_states_2.reshape(
            *hidden_states_2.shape[:2], hidden_states.shape[1], hidden_states.shape[1]
        )
        return hidden_states_2 + jnp.moveaxis(hidden_states, -1, 1)


class ResnetBlock2D2(Module):
    """A Resnet block."""

    groups: int
    in_channels: int
    num_groups: int

    def setup(self) -> None:
        norm: Any = partial(nn.GroupNorm, epsilon=1e-6, use_fast_variance=False, **self.dtypes)
        self.norm1 = norm(num_groups=self.groups)
        conv: Any = partial(
            nn.Conv,
            kernel_size=(3, 3),
            padding=((1, 1), (1, 1)),
            kernel_init=torch_uniform,
            bias_init=uniform_within((self.in_channels * 9) ** -0.5),
            **self.numerics,
        )
        self.conv1 = conv(self.in_channels)
        self.norm2 = norm(num_groups=self.num_groups)
        self.conv2 = conv(self.in_channels)

    def __call__(self, input_tensor: Array) -> Array:
        hidden_states = self.norm1(jnp.moveaxis(input_tensor, 1, -1))
        hidden_states = jax.nn.silu(hidden_states)
        hidden_states = self.conv1(hidden_states)
        hidden_states = self.norm2(hidden_states)
        hidden_states = jax.nn.silu(hidden_states)
        hidden_states = self.conv2(hidden_states)
        return input_tensor + jnp.moveaxis(hidden_states, -1, 1)


class Upsample2D(Module):
    """A 2D upsampling layer with an optional convolution."""

    config: AutoencoderKLConfig

    def setup(self) -> None:
        self.conv = nn.Conv(
            32,
            kernel_size=(3, 3),
            padding=((1, 1), (1, 1)),
            kernel_init=torch_uniform,
            bias_init=uniform_within((self.config.decoder_channels * 9) ** -0.5),
            **self.numerics,
        )

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = jnp.repeat(jnp.repeat(hidden_states, 2, axis=-2), 2, axis=-1)
        return self.conv(jnp.moveaxis(hidden_states, 1, -1))


class DownEncoderBlock2D(Module):
    config: AutoencoderKLConfig
    has_downsamplers: bool

    def setup(self) -> None:
        if self.has_downsamplers:
            self.resnets = [
                ResnetBlock2D(
                    groups=8,
                    in_channels=16,
                    num_groups=8,
                    out_channels=16,
                    conv_2d_out_channels=16,
                    use_in_shortcut=False,
                    **self.numerics,
                )
                for _ in range(2)
            ]
            self.downsamplers = [Downsample2D(self.config, **self.numerics)]
        else:
            self.resnets = [
                ResnetBlock2D(
                    groups=8,
                    in_channels=16,
                    num_groups=8,
                    out_channels=32,
                    conv_2d_out_channels=32,
                    use_in_shortcut=True,
                    **self.numerics,
                ),
                ResnetBlock2D(
                    groups=8,
                    in_channels=32,
                    num_groups=8,
                    out_channels=32,
                    conv_2d_out_channels=32,
                    use_in_shortcut=False,
                    **self.numerics,
                ),
            ]

    def __call__(self, hidden_states: Array) -> Array:
        for resnet in self.resnets:
            hidden_states = resnet(hidden_states)
        if self.has_downsamplers:
            for downsampler in self.downsamplers:
                hidden_states = downsampler(hidden_states)
        return hidden_states


class UNetMidBlock2D(Module):
    """A 2D UNet mid-block [`UNetMidBlock2D`] with multiple residual blocks and optional
    attention blocks."""

    config: AutoencoderKLConfig

    def setup(self) -> None:
        self.attentions = [Attention(self.config, **self.numerics)]
        self.resnets = [
            ResnetBlock2D(
                groups=self.config.norm_num_groups,
                in_channels=self.config.block_out_channels[-1],
                num_groups=self.config.norm_num_groups,
                out_channels=self.config.block_out_channels[-1],
                conv_2d_out_channels=self.config.block_out_channels[-1],
                use_in_shortcut=False,
                **self.numerics,
            ),
            ResnetBlock2D2(
                groups=self.config.norm_num_groups,
                in_channels=self.config.block_out_channels[-1],
                num_groups=self.config.norm_num_groups,
                **self.numerics,
            ),
        ]

    def __call__(self, hidden_states: Array) -> Array:
        hidden_states = self.resnets[0](hidden_states)
        for attention in self.attentions:
            hidden_states = attention(hidden_states)
        hidden_states = self.resnets[1](hidden_states)
        return hidden_states


class UpDecoderBlock2D(Module):
    config: AutoencoderKLConfig

    def setup(self) -> None:
        self.resnets = [
            ResnetBlock2D2(groups=8, in_channels=32, num_groups=8, **self.numerics)
            for _ in range(3)
        ]
        self.upsamplers = [Upsample2D(self.config, **self.numerics)]

    def __call__(self, hidden_states: Array) -> Array:
        for resnet in self.resnets:
            hidden_states = resnet(hidden_states)
        for upsampler in self.upsamplers:
            hidden_states = upsampler(hidden_states)
        return hidden_states


class UpDecoderBlock2D2(Module):
    def setup(self) -> None:
        resnet_block: Any = partial(
            ResnetBlock2D,
            groups=8,
            num_groups=8,
            out_channels=16,
            conv_2d_out_channels=16,
            **self.numerics,
        )
        self.resnets = [
            resnet_block(in_channels=32, use_in_shortcut=True),
            resnet_block(in_channels=16, use_in_shortcut=False),
            resnet_block(in_channels=16, use_in_shortcut=False),
        ]

    def __call__(self, hidden_states: Array) -> Array:
        for resnet in self.resnets:
            hidden_states = resnet(hidden_states)
        return hidden_states


class Encoder(Module):
    """The `Encoder` layer of a variational autoencoder that encodes its input into a latent
    representation."""

    config: AutoencoderKLConfig

    def setup(self) -> None:
        conv: Any = partial(
            nn.Conv,
            kernel_size=(3, 3),
            padding=((1, 1), (1, 1)),
            kernel_init=torch_uniform,
            **self.numerics,
        )
        init = uniform_within((self.config.in_channels * 9) ** -0.5)
        self.conv_in = conv(self.config.block_out_channels[0], bias_init=init)
        self.down_blocks = [
            DownEncoderBlock2D(self.config, has_downsamplers=True, **self.numerics),
            DownEncoderBlock2D(self.config, has_downsamplers=False, **self.numerics),
        ]
        self.mid_block = UNetMidBlock2D(self.config, **self.numerics)
        self.conv_norm_out = nn.GroupNorm(
            num_groups=self.config.norm_num_groups,
            epsilon=1e-6,
            use_fast_variance=False,
            **self.dtypes,
        )
        self.conv_out = conv(
            2 * self.config.latent_channels,
            bias_init=uniform_within((self.config.block_out_channels[-1] * 9) ** -0.5),
        )

    def __call__(self, sample: Array) -> Array:
        sample = self.conv_in(jnp.moveaxis(sample, 1, -1))
        for down_block in self.down_blocks:
            sample = down_block(sample)
        # middle
        sample = self.mid_block(sample)
        sample = self.conv_norm_out(jnp.moveaxis(sample, 1, -1))
        sample = jax.nn.silu(sample)
        return self.conv_out(sample)


class Decoder(Module):
    """The `Decoder` layer of a variational autoencoder that decodes its latent representation
    into an output sample."""

    config: AutoencoderKLConfig

    def setup(self) -> None:
        conv: Any = partial(
            nn.Conv,
            kernel_size=(3, 3),
            padding=((1, 1), (1, 1)),
            kernel_init=torch_uniform,
            **self.numerics,
        )
        init = uniform_within((self.config.latent_channels * 9) ** -0.5)
        self.conv_in = conv(self.config.block_out_channels[-1], bias_init=init)
        self.up_blocks = [
            UpDecoderBlock2D(self.config, **self.numerics),
            UpDecoderBlock2D2(**self.numerics),
        ]
        self.mid_block = UNetMidBlock2D(self.config, **self.numerics)
        self.conv_norm_out = nn.GroupNorm(
            num_groups=self.config.norm_num_groups,
            epsilon=1e-6,
            use_fast_variance=False,
            **self.dtypes,
        )
        self.conv_out = conv(
            3, bias_init=uniform_within((self.config.block_out_channels[0] * 9) ** -0.5)
        )

    def __call__(self, sample: Array) -> Array:
        sample = self.conv_in(sample)
        # middle
        sample = self.mid_block(sample)
        for up_block in self.up_blocks:
            sample = up_block(sample)
        sample = self.conv_norm_out(sample)
        sample = jax.nn.silu(sample)
        return self.conv_out(sample)


class AutoencoderKL(Module):
    """A VAE model with KL loss for encoding images into latents and decoding latent
    representations into images."""

    config: AutoencoderKLConfig

    def setup(self) -> None:
        self.encoder = Encoder(self.config, **self.numerics)
        self.decoder = Decoder(self.config, **self.numerics)
        conv: Any = partial(
            nn.Conv, kernel_size=(1, 1), padding="VALID", kernel_init=torch_uniform, **self.numerics
        )
        init = uniform_within((2 * self.config.latent_channels) ** -0.5)
        self.quant_conv = conv(2 * self.config.latent_channels, bias_init=init)
        self.post_quant_conv = conv(
            self.config.latent_channels, bias_init=uniform_within(self.config.latent_channels**-0.5)
        )

    def __call__(self, sample: Array) -> dict[str, Array]:
        demand_size(sample.shape[0] <= 63, "axis 0 of sample: up to 63")
        enc = self.encoder(sample)
        enc = self.quant_conv(enc)
        mean, _ = jnp.split(jnp.moveaxis(enc, -1, 1), 2, axis=1)
        z = self.post_quant_conv(jnp.moveaxis(mean, 1, -1))
        dec = self.decoder(z)
        return {"sample": jnp.moveaxis(dec, -1, 1)}
