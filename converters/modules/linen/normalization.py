"""torch's BatchNorm and InstanceNorm as linen modules, with running statistics as in torch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from converters.modules.functional.normalization import (
    Statistics,
    batch_statistics,
    instance_statistics,
    normalize,
)


class _Norm(nn.Module):
    """Base class of both norms.

    Attributes:
        eps: added to the variance.
        momentum: torch's: the weight of the new batch (Flax's is that of the old value); None: the
            running statistics are the plain mean over all batches (BatchNorm only).
        affine: whether there are a scale and a bias.
        track_running_stats: whether there are running statistics, in the collection `batch_stats`.
        axis_name: of replicas whose batches count as one (torch's SyncBatchNorm); else None.
        use_running_average: whether the running statistics normalize, as in torch's `eval()`; may
            be given to the call instead.
        scale_init: of the scale.
        bias_init: of the bias.
    """

    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True
    axis_name: str | None = None
    use_running_average: bool | None = None
    scale_init: nn.initializers.Initializer = nn.initializers.ones
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    def _statistics(self, x: Array) -> Statistics:
        raise NotImplementedError

    @nn.compact
    def __call__(self, x: Array, use_running_average: bool | None = None) -> Array:
        """Normalize (batch, *space, channels); in training update `batch_stats` (make it mutable)."""
        features = x.shape[-1]
        scale = bias = None
        if self.affine:
            scale = self.param("scale", self.scale_init, (features,))
            bias = self.param("bias", self.bias_init, (features,))
        if not self.track_running_stats:
            now = self._statistics(x)
            return normalize(x, now.mean, now.var, self.eps, scale, bias)
        running = nn.merge_param(
            "use_running_average", self.use_running_average, use_running_average
        )
        mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        var = self.variable("batch_stats", "var", jnp.ones, (features,))
        count = None
        if self.momentum is None:
            count = self.variable("batch_stats", "count", lambda: jnp.zeros((), jnp.int32))
        if running:
            return normalize(x, mean.value, var.value, self.eps, scale, bias)
        now = self._statistics(x)
        if not self.is_initializing():
            share: Any = self.momentum
            if count is not None:
                count.value = count.value + 1
                share = 1 / count.value
            mean.value = (1 - share) * mean.value + share * now.running_mean
            var.value = (1 - share) * var.value + share * now.running_var
        return normalize(x, now.mean, now.var, self.eps, scale, bias)


class BatchNorm(_Norm):
    """`torch.nn.BatchNorm1d`, 2d, 3d and, with `axis_name`, SyncBatchNorm; channels last.

    The running variance is the unbiased one, as in torch; Flax's BatchNorm keeps the biased one.
    """

    def _statistics(self, x: Array) -> Statistics:
        return batch_statistics(x, self.axis_name)


class InstanceNorm(_Norm):
    """`torch.nn.InstanceNorm1d`, 2d, 3d; channels last. torch's defaults: not affine, untracked."""

    affine: bool = False
    track_running_stats: bool = False
    use_running_average: bool | None = True

    def _statistics(self, x: Array) -> Statistics:
        return instance_statistics(x)
