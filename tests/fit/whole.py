"""Flax models whose architecture is whole and whose layers are narrow: a Llama block, a ViT, a ResNet-50."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

HEADS, GROUPS, HEAD = 4, 2, 32
STAGES = (3, 4, 6, 3)


def rotated(x: Any) -> Any:
    """(batch, tokens, heads, features), its two halves turned by their place."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None] * rates
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    left, right = x[..., :half], x[..., half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


class Llama(linen.Module):
    """A block: grouped queries, rotary places, a causal mask, SwiGLU."""

    @linen.compact
    def __call__(self, x: Any) -> Any:
        """Of (batch, tokens, 128)."""
        batch, tokens, width = x.shape
        y = linen.RMSNorm(name="before")(x)
        q = linen.Dense(HEADS * HEAD, use_bias=False, name="q")(y)
        k = linen.Dense(GROUPS * HEAD, use_bias=False, name="k")(y)
        v = linen.Dense(GROUPS * HEAD, use_bias=False, name="v")(y)
        q = rotated(q.reshape(batch, tokens, HEADS, HEAD))
        k = rotated(k.reshape(batch, tokens, GROUPS, HEAD))
        k = jnp.repeat(k, HEADS // GROUPS, 2)
        v = jnp.repeat(v.reshape(batch, tokens, GROUPS, HEAD), HEADS // GROUPS, 2)
        earlier = jnp.tril(jnp.ones((tokens, tokens), bool))
        mixed = linen.dot_product_attention(q, k, v, mask=earlier)
        x = x + linen.Dense(width, use_bias=False, name="out")(mixed.reshape(batch, tokens, -1))
        y = linen.RMSNorm(name="after")(x)
        gate = linen.silu(linen.Dense(352, use_bias=False, name="gate")(y))
        up = linen.Dense(352, use_bias=False, name="up")(y)
        return x + linen.Dense(width, use_bias=False, name="down")(gate * up)


class ViT(linen.Module):
    """Patches of 4 × 4, a token for the class, twelve blocks."""

    @linen.compact
    def __call__(self, image: Any) -> Any:
        """Of (batch, 32, 32, 3)."""
        x = linen.Conv(64, (4, 4), (4, 4), padding="VALID", name="patches")(image)
        x = x.reshape(x.shape[0], -1, 64)
        token = self.param("token", linen.initializers.zeros, (1, 1, 64))
        places = self.param("places", linen.initializers.normal(), (1, x.shape[1] + 1, 64))
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, 64)), x], 1) + places
        for number in range(12):
            y = linen.LayerNorm(name=f"before{number}")(x)
            x = x + linen.SelfAttention(num_heads=HEADS, name=f"attention{number}")(y)
            y = linen.LayerNorm(name=f"after{number}")(x)
            y = linen.gelu(linen.Dense(256, name=f"up{number}")(y))
            x = x + linen.Dense(64, name=f"down{number}")(y)
        return linen.Dense(10, name="head")(linen.LayerNorm(name="norm")(x)[:, 0])


class ResNet50(linen.Module):
    """Bottlenecks in four stages, with statistics; an eighth of the channels."""

    @linen.compact
    def __call__(self, image: Any, train: bool = False) -> Any:
        """Of (batch, 64, 64, 3)."""

        def convolved(x: Any, channels: int, side: int, stride: int, name: str) -> Any:
            x = linen.Conv(
                *(channels, (side, side), (stride, stride)), use_bias=False, name=f"{name}conv"
            )(x)
            return linen.BatchNorm(use_running_average=not train, name=f"{name}norm")(x)

        x = jax.nn.relu(convolved(image, 8, 7, 2, "stem"))
        x = linen.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate(STAGES):
            for block in range(blocks):
                width, stride = 8 << stage, 2 if stage and not block else 1
                name = f"{stage}_{block}_"
                y = jax.nn.relu(convolved(x, width, 1, 1, f"{name}a"))
                y = jax.nn.relu(convolved(y, width, 3, stride, f"{name}b"))
                y = convolved(y, 4 * width, 1, 1, f"{name}c")
                if not block:
                    x = convolved(x, 4 * width, 1, stride, f"{name}d")
                x = jax.nn.relu(x + y)
        return linen.Dense(10, name="head")(x.mean((1, 2)))
