"""Layers whose computation differs in training, selected by `deterministic`: for `migrate port`."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike


class BatchNorm(nn.Module):
    """`torch.nn.BatchNorm`, channels last.

    In training it normalizes with the batch and updates `batch_stats` as torch does. `momentum` is
    the weight of the new batch, and the running variance is the unbiased one (Flax's own keeps the
    biased one). Without a momentum the statistics are the mean over all batches. It computes in
    float32 at least, whatever the output dtype.
    """

    epsilon: float = 1e-5
    momentum: float | None = 0.1
    use_scale: bool = True
    use_bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    scale_init: nn.initializers.Initializer = nn.initializers.ones
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Array, deterministic: bool = True) -> Array:
        """Normalize (batch, *space, channels)."""
        features, axes = x.shape[-1:], tuple(range(x.ndim - 1))
        scale = bias = None
        if self.use_scale:
            scale = self.param("scale", self.scale_init, features, self.param_dtype)
        if self.use_bias:
            bias = self.param("bias", self.bias_init, features, self.param_dtype)
        dtype = nn.dtypes.canonicalize_dtype(x, scale, bias, dtype=self.dtype)
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
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
                for kept, now in ((kept_mean, mean), (kept_var, unbiased)):
                    moved = (1 - share) * kept.value + share * now
                    kept.value = moved.astype(kept.value.dtype)
                if self.momentum is None:
                    count.value = count.value + 1
        x = (x - mean) / jnp.sqrt(var.astype(x.dtype) + self.epsilon)
        x = x if scale is None else x * scale
        x = x if bias is None else x + bias
        return x.astype(dtype)


class Sequential(nn.Sequential):
    """Layers in sequence; those that differ in training receive `deterministic`."""

    def __call__(self, x: Array, deterministic: bool = True) -> Array:
        """Give each layer the output of the previous one."""
        for layer in self.layers:
            tells = "deterministic" in inspect.signature(layer).parameters
            x = layer(x, deterministic=deterministic) if tells else layer(x)
        return x
