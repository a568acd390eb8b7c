"""Layers that compute otherwise in training, told by `deterministic`: what `migrate port` writes."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm`, channels last.

    In training it normalises with the batch and updates `batch_stats` as torch does: `momentum` is the weight
    of the new batch, and the variance that is kept is the unbiased one (Flax's own keeps the biased one).
    Without a momentum the statistics are the mean over all batches.
    """

    epsilon: float = 1e-5
    momentum: float | None = 0.1
    use_scale: bool = True
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array, deterministic: bool = True) -> Array:
        """Normalise (batch, *space, channels)."""
        features, axes = x.shape[-1:], tuple(range(x.ndim - 1))
        kept_mean = self.variable("batch_stats", "mean", jnp.zeros, features)
        kept_var = self.variable("batch_stats", "var", jnp.ones, features)
        share: Any = self.momentum
        if self.momentum is None:
            count = self.variable("batch_stats", "count", lambda: jnp.zeros((), jnp.int32))
            share = 1 / (count.value + 1)
        mean, var = kept_mean.value, kept_var.value
        if not deterministic:
            mean, var = x.mean(axes), x.var(axes)
            if not self.is_initializing():
                rows = x.size // x.shape[-1]
                unbiased = var * (rows / (rows - 1))
                kept_mean.value = (1 - share) * kept_mean.value + share * mean
                kept_var.value = (1 - share) * kept_var.value + share * unbiased
                if self.momentum is None:
                    count.value = count.value + 1
        x = (x - mean) / jnp.sqrt(var + self.epsilon)
        if self.use_scale:
            x = x * self.param("scale", nn.initializers.ones, features)
        return x + self.param("bias", nn.initializers.zeros, features) if self.use_bias else x


class Sequential(nn.Sequential):
    """Layers one after the other; those that compute otherwise in training are told `deterministic`."""

    def __call__(self, x: Array, deterministic: bool = True) -> Array:
        """Give each layer what the one before it gave."""
        for layer in self.layers:
            tells = "deterministic" in inspect.signature(layer).parameters
            x = layer(x, deterministic=deterministic) if tells else layer(x)
        return x
