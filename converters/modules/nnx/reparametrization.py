"""torch's weight norm and spectral norm around an nnx layer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from converters.modules.functional import reparametrization


class _Reparametrized(nnx.Module):
    """Layer with some weights computed from others.

    The layer's weights keep their names in this module's own scope, so a converted weight-normed
    `Linear` is {"kernel_v", "kernel_g", "bias"}.

    Args:
        layer: the layer without the norm; its parameters become this module's.
        names: the names of its computed weights.
    """

    def __init__(self, layer: nnx.Module, names: tuple[str, ...]) -> None:
        self.bare, state = nnx.split(layer)
        self.paths = tuple(path for path, _ in nnx.to_flat_state(state))
        if any(len(path) != 1 for path in self.paths):
            raise ValueError("the layer must hold its parameters itself")
        self.computed = names
        for (name,), variable in nnx.to_flat_state(state):
            if name in names:
                self._keep(name, variable[...])
            else:
                setattr(self, name, variable)

    def _keep(self, name: str, weight: Array) -> None:
        raise NotImplementedError

    def _compute(self, name: str) -> Array:
        raise NotImplementedError

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Call the layer with its weights computed."""
        weights = {
            name: nnx.Param(self._compute(name)) if name in self.computed else getattr(self, name)
            for (name,) in self.paths
        }
        return nnx.merge(self.bare, nnx.State(weights))(*inputs, **options)


class WeightNorm(_Reparametrized):
    """`torch.nn.utils.parametrizations.weight_norm`, and the older `torch.nn.utils.weight_norm`.

    Each weight in `names` is computed from two arrays: NAME_v (torch's original1, weight_v), and NAME_g
    (original0, weight_g), whose sizes are 1 except at `axis`.

    Args:
        layer: the layer as it would be without.
        names: of its weights that are normed.
        axis: axis of the Flax weight that torch calls `dim`: -1 for the output of a Linear or Conv, -2
            for the input of a ConvTranspose. None: one norm of the whole weight.
        scale_init: initializer of NAME_g. None: the norm of NAME_v.
    """

    def __init__(
        self,
        layer: nnx.Module,
        names: tuple[str, ...] = ("kernel",),
        axis: int | None = -1,
        scale_init: nnx.initializers.Initializer | None = None,
    ) -> None:
        self.axis, self.scale_init = axis, scale_init
        super().__init__(layer, names)

    def _keep(self, name: str, weight: Array) -> None:
        if self.axis is None:
            norm = jnp.sqrt(jnp.sum(jnp.square(weight)))
        else:
            axes = tuple(axis for axis in range(weight.ndim) if axis != self.axis % weight.ndim)
            norm = jnp.sqrt(jnp.sum(jnp.square(weight), axis=axes, keepdims=True))
        if self.scale_init is not None:  # one that draws nothing
            norm = self.scale_init(jax.random.key(0), norm.shape, norm.dtype)
        setattr(self, f"{name}_v", nnx.Param(weight))
        setattr(self, f"{name}_g", nnx.Param(norm))

    def _compute(self, name: str) -> Array:
        v, g = getattr(self, f"{name}_v"), getattr(self, f"{name}_g")
        return reparametrization.weight_norm(v[...], g[...])


class SpectralNorm(_Reparametrized):
    """`torch.nn.utils.parametrizations.spectral_norm`, and the older `torch.nn.utils.spectral_norm`.

    For each name in `names` there are NAME_orig (`nnx.Param`), NAME_u and NAME_v
    (`nnx.BatchStat`). `nnx.SpectralNorm` differs: it iterates in inference too.

    Args:
        layer: the layer as it would be without.
        names: of its weights that are normed.
        axis: axis of the Flax weight that torch calls `dim`: -1 for the output of a Linear, Conv or
            ConvTranspose.
        n_power_iterations: iterations before each pass in training.
        eps: smallest norm to divide by.
        first: which vector an iteration renews first: "u" (parametrizations) or "v" (older form).
    """

    def __init__(
        self,
        layer: nnx.Module,
        names: tuple[str, ...] = ("kernel",),
        axis: int = -1,
        *,
        n_power_iterations: int = 1,
        eps: float = 1e-12,
        first: str = "u",
    ) -> None:
        self.axis, self.steps, self.eps, self.first = axis, n_power_iterations, eps, first
        self.deterministic = False  # set by `eval()` and `train()` of the model
        super().__init__(layer, names)

    def _keep(self, name: str, weight: Array) -> None:
        rows = [1] * weight.ndim
        rows[self.axis] = weight.shape[self.axis]
        columns = list(weight.shape)
        columns[self.axis] = 1
        u, v = reparametrization.power_iteration(
            weight, jnp.ones(rows), jnp.ones(columns), 15, self.eps, self.first
        )
        setattr(self, f"{name}_orig", nnx.Param(weight))
        setattr(self, f"{name}_u", nnx.BatchStat(u))
        setattr(self, f"{name}_v", nnx.BatchStat(v))

    def _compute(self, name: str) -> Array:
        weight = getattr(self, f"{name}_orig")[...]
        u, v = getattr(self, f"{name}_u"), getattr(self, f"{name}_v")
        if not self.deterministic:
            new = reparametrization.power_iteration(
                weight, u[...], v[...], self.steps, self.eps, self.first
            )
            u.set_value(jax.lax.stop_gradient(new[0]))
            v.set_value(jax.lax.stop_gradient(new[1]))
        return reparametrization.spectral_norm(weight, u[...], v[...])
