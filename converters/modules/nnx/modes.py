"""Layers whose computation differs in training, set by `train()` and `eval()`: for `migrate port`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax import Array
from jax.typing import DTypeLike


class BatchNorm(nnx.Module):
    """`torch.nn.BatchNorm`, channels last.

    In training it normalizes with the batch and updates `mean` and `var` as torch does. `momentum` is
    the weight of the new batch, and the running variance is the unbiased one (nnx's own keeps the
    biased one). Without a momentum the statistics are the mean over all batches. It computes in
    float32 at least, whatever the output dtype.
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-5,
        momentum: float | None = 0.1,
        use_scale: bool = True,
        use_bias: bool = True,
        use_running_average: bool = False,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        scale_init: nnx.initializers.Initializer = nnx.initializers.ones,
        bias_init: nnx.initializers.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs,
    ) -> None:
        shape = (num_features,)
        self.epsilon, self.momentum, self.dtype = epsilon, momentum, dtype
        self.use_running_average = use_running_average

        def weight(init: nnx.initializers.Initializer) -> nnx.Param[Array]:
            return nnx.Param(init(rngs.params(), shape, param_dtype))

        self.scale = weight(scale_init) if use_scale else None
        self.bias = weight(bias_init) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(shape))
        self.var = nnx.BatchStat(jnp.ones(shape))
        if momentum is None:
            self.count = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x: Array) -> Array:
        """Normalize (batch, *space, channels)."""
        axes = tuple(range(x.ndim - 1))
        scale = None if self.scale is None else self.scale[...]
        bias = None if self.bias is None else self.bias[...]
        dtype = dtypes.canonicalize_dtype(x, scale, bias, dtype=self.dtype)
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        mean, var = self.mean[...], self.var[...]
        if not self.use_running_average:
            mean, var = x.mean(axes), x.var(axes)
            share: Any = self.momentum
            if self.momentum is None:
                self.count[...] += 1
                share = 1 / self.count[...]
            rows = x.size // x.shape[-1]
            for kept, now in ((self.mean, mean), (self.var, var * (rows / (rows - 1)))):
                moved = (1 - share) * kept[...] + share * now
                kept[...] = moved.astype(kept.dtype)
        x = (x - mean) / jnp.sqrt(var.astype(x.dtype) + self.epsilon)
        x = x if scale is None else x * scale
        x = x if bias is None else x + bias
        return x.astype(dtype)
