"""torch's norms as nnx modules, with running statistics as in torch, and norms of several axes."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array

from converters.modules.functional import normalization
from converters.modules.functional.normalization import Statistics, normalize


def _started(
    init: nnx.initializers.Initializer, shape: tuple[int, ...], rngs: nnx.Rngs | None
) -> nnx.Param[Array]:
    """Return a parameter; without `rngs` its initializer must be one that draws nothing."""
    key = None if rngs is None else rngs.params()
    return nnx.Param(init(key, shape, jnp.float32))


class _Norm(nnx.Module):
    """Base class of BatchNorm and InstanceNorm.

    Args:
        num_features: channels.
        eps: added to the variance.
        momentum: torch's: the weight of the new batch (Flax's is that of the old value); None: the
            running statistics are the plain mean over all batches (BatchNorm only).
        affine: whether there are a scale and a bias.
        track_running_stats: whether there are running statistics (`nnx.BatchStat`).
        axis_name: of replicas whose batches count as one (torch's SyncBatchNorm); else None.
        use_running_average: set by `eval()` and `train()` of the model.
        scale_init: of the scale.
        bias_init: of the bias.
        rngs: for initializers that draw.
    """

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        axis_name: str | None = None,
        use_running_average: bool = False,
        scale_init: nnx.initializers.Initializer = nnx.initializers.ones,
        bias_init: nnx.initializers.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.eps, self.momentum, self.axis_name = eps, momentum, axis_name
        self.affine, self.track_running_stats = affine, track_running_stats
        self.use_running_average = use_running_average
        if affine:
            self.scale = _started(scale_init, (num_features,), rngs)
            self.bias = _started(bias_init, (num_features,), rngs)
        if track_running_stats:
            self.mean = nnx.BatchStat(jnp.zeros((num_features,)))
            self.var = nnx.BatchStat(jnp.ones((num_features,)))
            if momentum is None:
                self.count = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def _statistics(self, x: Array) -> Statistics:
        raise NotImplementedError

    def __call__(self, x: Array) -> Array:
        """Normalize (batch, *space, channels); in training update the running statistics."""
        scale = self.scale[...] if self.affine else None
        bias = self.bias[...] if self.affine else None
        if self.track_running_stats and self.use_running_average:
            return normalize(x, self.mean[...], self.var[...], self.eps, scale, bias)
        now = self._statistics(x)
        if self.track_running_stats:
            share = self.momentum
            if share is None:
                self.count.set_value(self.count[...] + 1)
                share = 1 / self.count[...]
            self.mean.set_value((1 - share) * self.mean[...] + share * now.running_mean)
            self.var.set_value((1 - share) * self.var[...] + share * now.running_var)
        return normalize(x, now.mean, now.var, self.eps, scale, bias)


class BatchNorm(_Norm):
    """`torch.nn.BatchNorm1d`, 2d, 3d and, with `axis_name`, SyncBatchNorm; channels last.

    The running variance is the unbiased one, as in torch; nnx's BatchNorm keeps the biased one.
    """

    def _statistics(self, x: Array) -> Statistics:
        return normalization.batch_statistics(x, self.axis_name)


class InstanceNorm(_Norm):
    """`torch.nn.InstanceNorm1d`, 2d, 3d; channels last. torch's defaults: not affine, untracked."""

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        use_running_average: bool = False,
        scale_init: nnx.initializers.Initializer = nnx.initializers.ones,
        bias_init: nnx.initializers.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(
            num_features,
            eps=eps,
            momentum=momentum,
            affine=affine,
            track_running_stats=track_running_stats,
            use_running_average=use_running_average,
            scale_init=scale_init,
            bias_init=bias_init,
            rngs=rngs,
        )

    def _statistics(self, x: Array) -> Statistics:
        return normalization.instance_statistics(x)


class LayerNorm(nnx.Module):
    """`torch.nn.LayerNorm` of one or several axes; nnx's own has a flat scale only.

    Args:
        normalized_shape: of the last axes, which are normalized together.
        eps: added to the variance.
        elementwise_affine: whether there are a scale and a bias, of this shape.
        bias: whether there is a bias, if so.
        scale_init: of the scale.
        bias_init: of the bias.
        rngs: for initializers that draw.
    """

    def __init__(
        self,
        normalized_shape: tuple[int, ...],
        *,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        scale_init: nnx.initializers.Initializer = nnx.initializers.ones,
        bias_init: nnx.initializers.Initializer = nnx.initializers.zeros,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.shape, self.eps = tuple(normalized_shape), eps
        self.scale = _started(scale_init, self.shape, rngs) if elementwise_affine else None
        has_bias = elementwise_affine and bias
        self.bias = _started(bias_init, self.shape, rngs) if has_bias else None

    def __call__(self, x: Array) -> Array:
        """Normalize the last axes."""
        scale = None if self.scale is None else self.scale[...]
        bias = None if self.bias is None else self.bias[...]
        return normalization.layer_norm(x, self.shape, self.eps, scale, bias)


class RMSNorm(nnx.Module):
    """`torch.nn.RMSNorm` of one or several axes; nnx's own has a flat scale only.

    Args:
        normalized_shape: of the last axes, whose root mean square divides them.
        eps: added to the mean square; None: the smallest step of the input's dtype, as in torch.
        elementwise_affine: whether there is a scale, of this shape.
        scale_init: of the scale.
        rngs: for initializers that draw.
    """

    def __init__(
        self,
        normalized_shape: tuple[int, ...],
        *,
        eps: float | None = None,
        elementwise_affine: bool = True,
        scale_init: nnx.initializers.Initializer = nnx.initializers.ones,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.shape, self.eps = tuple(normalized_shape), eps
        self.scale = _started(scale_init, self.shape, rngs) if elementwise_affine else None

    def __call__(self, x: Array) -> Array:
        """Divide the last axes by their root mean square."""
        scale = None if self.scale is None else self.scale[...]
        return normalization.rms_norm(x, self.shape, self.eps, scale)
