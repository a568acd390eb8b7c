"""Flax models with a planted fault each, at the line that says so, and models without any."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen


class Vocabulary(linen.Module):
    """GPT-2's vocabulary, which no side of a tile divides."""

    size: int = 50257

    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        """Of (batch, tokens)."""
        x = linen.Embed(50304, 128)(tokens)
        return linen.Dense(self.size)(x)  # FAULT: vocabulary


class Heads(linen.Module):
    """Attention whose heads leave a part of the matrix unit idle."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, heads, tokens, features of a head)."""
        scores = jnp.einsum("bhqd,bhkd->bhqk", x, x)
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), x)  # FAULT: heads


class OneHot(linen.Module):
    """Rows of a table, found by multiplying all of it."""

    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        """Of (batch, tokens)."""
        table = self.param("table", linen.initializers.normal(), (4096, 256))
        x = jax.nn.one_hot(tokens, 4096) @ table  # FAULT: one-hot
        return linen.Dense(256)(x)


class Depthwise(linen.Module):
    """Each channel by itself: one column of a matrix unit."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, height, width, 256)."""
        x = linen.Conv(256, (3, 3), feature_group_count=256)(x)  # FAULT: depthwise
        return linen.Conv(256, (1, 1))(x)


class Windows(linen.Module):
    """Scores of windows of 65 tokens: no two of their sides fill a tile."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 33, 65, features)."""
        scores = jnp.einsum("bwqd,bwkd->bwqk", x, x)
        return jnp.tanh(scores) * scores.sum()  # FAULT: windows


class Turned(linen.Module):
    """A large array that is only brought into another order."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 1024, 1024)."""
        y = linen.Dense(1024)(x)
        return y, jnp.transpose(x, (2, 1, 0))  # FAULT: turned


class Mixed(linen.Module):
    """One layer of many was forgotten when they became bfloat16."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 1024)."""
        x = x.astype(jnp.bfloat16)
        for _ in range(3):
            x = linen.relu(linen.Dense(1024, dtype=jnp.bfloat16)(x))
        x = linen.relu(linen.Dense(1024, dtype=jnp.float32)(x))  # FAULT: mixed
        return linen.Dense(1024, dtype=jnp.bfloat16)(x)


class Half(linen.Module):
    """float16, which the chip does not have."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 1024)."""
        return linen.Dense(1024, dtype=jnp.float16)(x)  # FAULT: half


class Exact(linen.Module):
    """A product with all digits."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 1024)."""
        return linen.Dense(1024, precision="highest")(x)  # FAULT: exact


class Kept(linen.Module):
    """Values that no chip has room for."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 1024)."""
        x = linen.Dense(16384)(x)
        x = jax.nn.softmax(x.reshape(-1, 128, 128), -1)
        return jnp.cumsum(x, 0)  # FAULT: batch


class Tower(linen.Module):
    """Two wide layers; with a mesh the second may be forgotten."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 1024)."""
        x = linen.relu(linen.Dense(8192)(x))
        return linen.Dense(2048)(x)  # FAULT: whole


class Block(linen.Module):
    """Attention and two layers, heads of 128, bfloat16 with a softmax of float32."""

    dtype: Any = jnp.bfloat16

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, tokens, 512)."""
        y = linen.LayerNorm(dtype=self.dtype)(x)
        y = linen.SelfAttention(num_heads=4, dtype=self.dtype)(y)
        x = x + y
        y = linen.Dense(2048, dtype=self.dtype)(linen.LayerNorm(dtype=self.dtype)(x))
        return x + linen.Dense(512, dtype=self.dtype)(linen.gelu(y))


class LanguageModel(linen.Module):
    """A block and a vocabulary that fills its tiles."""

    dtype: Any = jnp.bfloat16

    @linen.compact
    def __call__(self, tokens: Any) -> Any:
        """Of (batch, tokens)."""
        x = linen.Embed(1024, 512, dtype=self.dtype)(tokens)
        return linen.Dense(1024, dtype=self.dtype)(Block(self.dtype)(x))


class Images(linen.Module):
    """Convolutions of 128 channels with statistics."""

    @linen.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        """Of (batch, height, width, 128)."""
        for _ in range(2):
            x = linen.Conv(128, (3, 3), use_bias=False)(x)
            x = linen.relu(linen.BatchNorm(use_running_average=not train)(x))
        return linen.Dense(128)(x.mean((1, 2)))


class Looped(linen.Module):
    """Four layers as a loop, their values computed again for the gradients."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, 512)."""
        layer = linen.remat(Layer)
        return linen.scan(
            layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
        )()(x, None)[0]


class Layer(linen.Module):
    """One of them."""

    @linen.compact
    def __call__(self, x: Any, _: Any) -> Any:
        """Of (batch, 512)."""
        return linen.relu(linen.Dense(512)(x)), None


def full_vocabulary() -> linen.Module:
    """A vocabulary of 393 tiles."""
    return Vocabulary(50304)


def full_language_model() -> linen.Module:
    """All of it in float32."""
    return LanguageModel(jnp.float32)
