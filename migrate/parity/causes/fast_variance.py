"""E[x²] - E[x]² in float32."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from migrate.parity.causes.frame.pattern import Array, Example, Pattern, Variant, loaded, normal
from migrate.parity.causes.frame.scene import Scene


def _truth() -> nn.Module:
    return nn.LayerNorm(64)


class _Faulty(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class FastVariance(Pattern):
    """The variance is E[x²] - E[x]², which cancels.

    **What it is.** In one pass over the data the variance is the difference of two large numbers where
    the mean is large next to the deviation: in float32 a mean of 100 deviations leaves four digits of
    seven. Flax's norms compute it so by default (`use_fast_variance=True`), torch's do not. Each row is
    then off by a factor of its own, which depends on the order of the sums: a variant has errors of the
    same size, not the same errors, and what shows it is that nothing but this factor is left.

    **What to do.** `use_fast_variance=False` in Flax.
    """

    name = "fast-variance"
    rank = 2
    examples = (
        Example(
            _truth,
            lambda twin: loaded(_Faulty(64), twin),
            normal(8, 64, mean=100.0),
            "computes the variance as E[x²] - E[x]²",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield a norm whose every row has the factor and the offset that fit the side's best."""
        calls = scene.calls("layer_norm")
        if (
            len(calls) != 1
            or len(calls[0].get(1, "normalized_shape")) != 1
            or not _cancels(calls[0].args[0])
        ):
            return
        weight, bias = calls[0].get(2, "weight"), calls[0].get(3, "bias")
        words = (
            "{side} computes the variance as E[x²] - E[x]², which cancels where the mean is large"
        )
        yield Variant(words, adjust=partial(_rows_scaled, _numpy(weight, 1.0), _numpy(bias, 0.0)))


def _numpy(tensor: Any, otherwise: float) -> Array:
    return np.array(otherwise) if tensor is None else tensor.detach().numpy()


def _cancels(x: torch.Tensor) -> bool:
    """Whether E[x²] - E[x]² loses more than two digits in some row."""
    ratio = x.square().mean(-1) / x.var(-1, correction=0).clamp_min(1e-300)
    return bool(ratio.max() > 100)


def _rows_scaled(weight: Array, bias: Array, given: Array, mine: Array) -> Array | None:
    if given.shape != mine.shape or not np.isfinite(mine).all():
        return None
    normed = given - bias
    basis = np.stack([normed, np.broadcast_to(weight, given.shape)], -1)
    square = basis.swapaxes(-1, -2) @ basis
    factors = np.linalg.solve(square, basis.swapaxes(-1, -2) @ (mine - bias)[..., None])
    # Rounding of the mean alone is an offset: every norm in float32 has that.
    if np.abs(factors[..., 0, 0] - 1).max() < 1e-5:
        return None
    return bias + (basis @ factors)[..., 0]
