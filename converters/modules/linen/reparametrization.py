"""torch's weight norm and spectral norm around a linen layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from converters.modules.functional import reparametrization


class _Reparametrized(nn.Module):
    """Layer with some weights computed from others.

    The layer's weights keep their names in this module's own scope, so a converted weight-normed
    `Dense` is {"kernel_v", "kernel_g", "bias"}.

    Attributes:
        layer: the layer without the norm, with direct parameters only.
        names: the names of its computed weights.
    """

    layer: nn.Module
    names: tuple[str, ...] = ("kernel",)

    def _compute(self, name: str, initial: Array) -> Array:
        raise NotImplementedError

    @nn.compact
    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Call the layer with its weights computed."""
        bare = self.layer.clone(parent=None, name=None)
        key = self.make_rng("params") if self.is_initializing() else jax.random.key(0)

        def make(key: Array) -> dict[str, Array]:
            return bare.init(key, *inputs, **options)["params"]

        shapes = jax.eval_shape(make, key)
        values = make(key) if self.is_initializing() else shapes
        weights = {}
        for name, value in values.items():
            if name in self.names:
                weights[name] = self._compute(name, value)
            else:
                weights[name] = self.param(name, lambda key, value=value: value)
        return bare.apply({"params": weights}, *inputs, **options)


class WeightNorm(_Reparametrized):
    """`torch.nn.utils.parametrizations.weight_norm`, and the older `torch.nn.utils.weight_norm`.

    Each weight in `names` is computed from two arrays: NAME_v (torch's original1, weight_v), and NAME_g
    (original0, weight_g), whose sizes are 1 except at `axis`.

    Attributes:
        axis: axis of the Flax weight that torch calls `dim`: -1 for the output of a Dense or Conv, -2
            for the input of a ConvTranspose. None: one norm of the whole weight.
        scale_init: initializer of NAME_g. None: the norm of NAME_v.
    """

    axis: int | None = -1
    scale_init: nn.initializers.Initializer | None = None

    def _compute(self, name: str, initial: Any) -> Array:
        v = self.param(f"{name}_v", lambda key: initial)

        def norm(key: Array) -> Array:
            if self.axis is None:
                scale = jnp.sqrt(jnp.sum(jnp.square(v)))
            else:
                axes = tuple(axis for axis in range(v.ndim) if axis != self.axis % v.ndim)
                scale = jnp.sqrt(jnp.sum(jnp.square(v), axis=axes, keepdims=True))
            return self.scale_init(key, scale.shape) if self.scale_init is not None else scale

        return reparametrization.weight_norm(v, self.param(f"{name}_g", norm))


class SpectralNorm(_Reparametrized):
    """`torch.nn.utils.parametrizations.spectral_norm`, and the older `torch.nn.utils.spectral_norm`.

    For each name in `names` there are NAME_orig and, in the collection `batch_stats`, NAME_u and
    NAME_v. `flax.linen.SpectralNorm` differs: it iterates in inference too.

    Attributes:
        axis: axis of the Flax weight that torch calls `dim`: -1 for the output of a Dense, Conv or
            ConvTranspose.
        n_power_iterations: iterations before each pass in training.
        eps: smallest norm to divide by.
        first: which vector an iteration renews first: "u" (parametrizations) or "v" (older form).
        training: whether to iterate; `batch_stats` must be mutable then.
    """

    axis: int = -1
    n_power_iterations: int = 1
    eps: float = 1e-12
    first: str = "u"
    training: bool = False

    def _compute(self, name: str, initial: Any) -> Array:
        weight = self.param(f"{name}_orig", lambda key: initial)
        rows = [1] * weight.ndim
        rows[self.axis] = weight.shape[self.axis]
        columns = list(weight.shape)
        columns[self.axis] = 1
        u = self.variable("batch_stats", f"{name}_u", lambda: jnp.ones(rows))
        v = self.variable("batch_stats", f"{name}_v", lambda: jnp.ones(columns))
        if self.training or self.is_initializing():
            steps = 15 if self.is_initializing() else self.n_power_iterations
            u.value, v.value = jax.lax.stop_gradient(
                reparametrization.power_iteration(
                    weight, u.value, v.value, steps, self.eps, self.first
                )
            )
        return reparametrization.spectral_norm(weight, u.value, v.value)
