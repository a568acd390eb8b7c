"""Llama, ViT and ResNet-50 in Flax as a person writes them: what ports are measured against.

Names and arguments are as in the examples of Flax and Google Research. `dtype` is the dtype of the
computation, as in Flax's layers; None: that of weights and inputs. Normalizations, rotary angles and the
softmax of the attention are computed in float32, as in the originals.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class RMSNorm(nn.Module):
    """Division by the root of the mean square, in float32.

    Attributes:
        dtype: of the outputs.
        param_dtype: of the scale.
    """

    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalize the last axis."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), self.param_dtype)
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + 1e-6)
        return y.astype(x.dtype) * jnp.asarray(scale, self.dtype)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn queries or keys of (batch, length, heads, width) by the angles of their positions."""
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


class Llama(nn.Module):
    """Decoder with grouped queries, rotary positions and a gated MLP.

    Attributes:
        vocabulary, width, hidden, layers, heads, key_heads: its sizes.
        logits: whether the outputs are scores of the vocabulary, or the last hidden state.
    """

    vocabulary: int = 512
    width: int = 256
    hidden: int = 688
    layers: int = 4
    heads: int = 8
    key_heads: int = 2
    logits: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, input_ids: jax.Array) -> jax.Array:
        """Compute logits or states of tokens of (batch, length)."""
        dtypes: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = partial(RMSNorm, **dtypes)
        dense = partial(nn.Dense, use_bias=False, **dtypes)
        general = partial(nn.DenseGeneral, use_bias=False, **dtypes)
        side = self.width // self.heads
        x = nn.Embed(self.vocabulary, self.width, **dtypes)(input_ids)
        angles = jnp.arange(x.shape[1])[:, None] / 10000.0 ** (jnp.arange(0, side, 2) / side)
        angles = jnp.concatenate([angles, angles], axis=-1)[:, None]
        cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        for _ in range(self.layers):
            y = norm()(x)
            q = general((self.heads, side))(y)
            k = general((self.key_heads, side))(y)
            v = general((self.key_heads, side))(y)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + general(self.width, axis=(-2, -1))(y)
            y = norm()(x)
            gate, up = dense(self.hidden)(y), dense(self.hidden)(y)
            x = x + dense(self.width)(nn.silu(gate) * up)
        x = norm()(x)
        return dense(self.vocabulary)(x) if self.logits else x


class ViT(nn.Module):
    """Vision transformer with a class token.

    Attributes:
        width, hidden, layers, heads, patch: its sizes.
        labels: number of classes; 0: the outputs are the last hidden states.
        fast_variance: as Flax's `LayerNorm` has it; torch computes the variance in two passes.
    """

    width: int = 192
    hidden: int = 768
    layers: int = 6
    heads: int = 3
    patch: int = 8
    labels: int = 0
    fast_variance: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, pixel_values: jax.Array) -> jax.Array:
        """Compute logits or states of images of (batch, channels, height, width)."""
        dtypes: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        fast = self.fast_variance
        norm = partial(nn.LayerNorm, epsilon=1e-12, use_fast_variance=fast, **dtypes)
        general = partial(nn.DenseGeneral, **dtypes)
        sides = (self.patch, self.patch)
        x = nn.Conv(self.width, sides, sides, "VALID", **dtypes)(jnp.moveaxis(pixel_values, 1, -1))
        x = x.reshape(x.shape[0], -1, self.width)
        zeros = nn.initializers.zeros
        first = self.param("cls", zeros, (1, 1, self.width), self.param_dtype)
        first = jnp.broadcast_to(first, (x.shape[0], 1, self.width)).astype(x.dtype)
        x = jnp.concatenate([first, x], axis=1)
        positions = self.param("positions", zeros, (1, *x.shape[1:]), self.param_dtype)
        x = x + positions.astype(x.dtype)
        for _ in range(self.layers):
            y = norm()(x)
            q, k, v = (general((self.heads, self.width // self.heads))(y) for _ in range(3))
            x = x + general(self.width, axis=(-2, -1))(jax.nn.dot_product_attention(q, k, v))
            y = nn.Dense(self.hidden, **dtypes)(norm()(x))
            x = x + nn.Dense(self.width, **dtypes)(nn.gelu(y, approximate=False))
        x = norm()(x)
        return nn.Dense(self.labels, **dtypes)(x[:, 0]) if self.labels else x


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut.

    Attributes:
        width: channels of the convolution in the middle.
        stride: stride of that convolution.
        train: whether batches are normalized by their own statistics.
    """

    width: int
    stride: int
    train: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute the block of (batch, height, width, channels)."""
        dtypes: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = partial(
            nn.BatchNorm,
            use_running_average=not self.train,
            momentum=0.9,
            epsilon=1e-5,
            **dtypes,
        )
        conv = partial(nn.Conv, use_bias=False, **dtypes)
        sides, pairs = (self.stride, self.stride), ((1, 1), (1, 1))
        y = nn.relu(norm()(conv(self.width, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.width, (3, 3), sides, pairs)(y)))
        y = norm()(conv(4 * self.width, (1, 1))(y))
        if x.shape != y.shape:
            x = norm()(conv(4 * self.width, (1, 1), sides)(x))
        return nn.relu(x + y)


class ResNet50(nn.Module):
    """ResNet of 50 layers.

    Attributes:
        labels: number of classes; 0: the outputs are the pooled states.
        depths: blocks of each stage; others make another ResNet.
    """

    labels: int = 0
    depths: tuple[int, ...] = (3, 4, 6, 3)
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, pixel_values: jax.Array, train: bool = False) -> jax.Array:
        """Compute logits or pooled states of images of (batch, channels, height, width)."""
        dtypes: Any = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = jnp.moveaxis(pixel_values, 1, -1)
        x = nn.Conv(64, (7, 7), (2, 2), ((3, 3), (3, 3)), use_bias=False, **dtypes)(x)
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5, **dtypes)
        x = nn.max_pool(nn.relu(norm(x)), (3, 3), (2, 2), ((1, 1), (1, 1)))
        for stage, depth in enumerate(self.depths):
            for block in range(depth):
                stride = 2 if stage and not block else 1
                x = Bottleneck(64 * 2**stage, stride, train, **dtypes)(x)
        x = x.mean(axis=(1, 2))
        return nn.Dense(self.labels, **dtypes)(x) if self.labels else x
