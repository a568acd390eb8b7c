"""Narrow numbers: layers, softmax and products in 16 bits, variances that cancel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from migrate.parity.causes.frame.changes import several, weight
from migrate.parity.causes.frame.functions import FunctionCall, Handler
from migrate.parity.causes.frame.pattern import (
    Array,
    FaultExample,
    Pattern,
    Variant,
    loaded,
    normal,
)
from migrate.parity.causes.frame.products import rounded_products, to_bfloat16
from migrate.parity.causes.frame.rounding import rounded_to
from migrate.parity.causes.frame.scene import Scene
from migrate.parity.sides.torch.capture.tree import leaves, replaced


def _fast_variance_truth() -> nn.Module:
    return nn.LayerNorm(64)


class _FastVarianceFaulty(nn.LayerNorm):
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
        FaultExample(
            _fast_variance_truth,
            lambda twin: loaded(_FastVarianceFaulty(64), twin),
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


def _rows_scaled(weight: Array, bias: Array, output: Array, mine: Array) -> Array | None:
    if output.shape != mine.shape or not np.isfinite(mine).all():
        return None
    normed = output - bias
    basis = np.stack([normed, np.broadcast_to(weight, output.shape)], -1)
    square = basis.swapaxes(-1, -2) @ basis
    factors = np.linalg.solve(square, basis.swapaxes(-1, -2) @ (mine - bias)[..., None])
    # Rounding of the mean alone is an offset, which every norm in float32 has.
    if np.abs(factors[..., 0, 0] - 1).max() < 1e-5:
        return None
    return bias + (basis @ factors)[..., 0]


def _low_precision_layer_truth() -> nn.Module:
    return nn.Linear(16, 16)


class _LowPrecisionLayerFaulty(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.bfloat16())
        return y.to(x.dtype)


class _Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(1)


class _NarrowSum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(x.shape[0], x.shape[2], dtype=torch.bfloat16)
        for part in x.square().bfloat16().chunk(7, 1):
            total = total + part.sum(1)
        return total.to(x.dtype)


class LowPrecisionLayer(Pattern):
    """A layer computes in 16 bits.

    **What it is.** `dtype=jnp.bfloat16` was left in a layer from a training on TPUs, or autocast is on:
    what goes in and comes out of each of its operations is rounded.

    **What to do.** Leave `dtype` out, or set it on both sides and compare with the profile `bf16`.
    """

    name = "low-precision-layer"
    rank = 1
    examples = (
        FaultExample(
            _low_precision_layer_truth,
            _LowPrecisionLayerFaulty,
            normal(4, 16),
            "computes in bfloat16",
        ),
        FaultExample(_Sum, lambda twin: _NarrowSum(), normal(4, 30, 6), "in bfloat16"),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield the layer with all of it rounded, with its results alone, and with its sums."""
        if scene.replay.dtype not in (torch.float32, torch.float64):
            return
        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            for fused, words in ((True, ""), (False, ", and rounds before it adds a bias")):
                step = partial(_step, dtype, fused)
                yield Variant(
                    f"{{side}} computes in {name}{words}", partial(_all, scene, dtype, step)
                )
                text = f"{{side}} rounds each result to {name}{words}"
                yield Variant(text, partial(scene.every, step))
            for where, change in scene.replaced(partial(_sums, dtype, True)):
                yield Variant(f"{{side}} adds up in {name}{where}", change)
            for where, change in scene.replaced(partial(_sums, dtype, False)):
                yield Variant(f"{{side}} adds up {name} and rounds the sum{where}", change)
        yield Variant(
            "{side} computes in bfloat16, {where}",
            adjust=_on_the_grid,
            evidence="all values of {side} are numbers that bfloat16 has, {where}",
        )


def _on_the_grid(output: Array, mine: Array) -> Array | None:
    """The side's values, if all are bfloat16 numbers near the truth's, and the truth's are not."""
    if output.shape != mine.shape or not np.isfinite(mine).all() or (mine != 0).sum() < 8:
        return None
    near = np.linalg.norm(output - mine) <= 0.05 * np.linalg.norm(output)
    return mine if near and _is_narrow(mine) and not _is_narrow(output) else None


def _is_narrow(array: Array) -> bool:
    return bool((array.astype(ml_dtypes.bfloat16).astype(np.float64) == array).all())


def _all(scene: Scene, dtype: torch.dtype, step: Handler) -> Any:
    def narrowed(_path: str, tensor: torch.Tensor) -> torch.Tensor:
        return rounded_to(tensor, dtype)

    weights = scene.weights(lambda _module, _name, tensor: tensor.is_floating_point())
    return several(
        [
            scene.replay.fed(narrowed),
            *(
                weight(part.module, name, partial(rounded_to, dtype=dtype))
                for part, name in weights
            ),
            scene.every(step),
        ]
    )


def _step(dtype: torch.dtype, fused: bool, call: FunctionCall) -> Any:
    """Round the result of a function; a dense layer that is not fused rounds its product too."""
    if not fused and call.name == "linear" and call.get(2, "bias") is not None:
        product = rounded_to(call.but(2, "bias", None).run(), dtype)
        return rounded_to(product + call.get(2, "bias"), dtype)
    result = call.run()
    return replaced(result, {path: rounded_to(tensor, dtype) for path, tensor in leaves(result)})


def _sums(dtype: torch.dtype, each: bool) -> Mapping[str, Handler]:
    """Sums and means along one axis, of rounded terms; with `each`, rounded after each term too."""

    def handle(call: FunctionCall) -> Any:
        axis = call.get(1, "dim")
        axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
        if not isinstance(axis, int):
            return call.run()
        terms = rounded_to(call.args[0], dtype)
        total = terms.sum(axis, keepdim=True)
        if each:
            total = torch.zeros_like(total)
            for term in terms.split(1, axis):
                total = rounded_to(total + term, dtype)
        total = rounded_to(total, dtype)
        if call.name == "mean":
            total = rounded_to(total / terms.shape[axis], dtype)
        return total if call.get(2, "keepdim", False) else total.squeeze(axis)

    return {"sum": handle, "mean": handle}


class _LowPrecisionSoftmaxTruth(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, -1)


class _LowPrecisionSoftmaxFaulty(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores.bfloat16(), -1).to(scores.dtype)


class LowPrecisionSoftmax(Pattern):
    """A softmax that is computed in 16 bits.

    **What it is.** The scores are rounded to bfloat16 (or float16) before the softmax: an autocast that
    does not except it, a `dtype=` of the attention, a missing `.astype(jnp.float32)`. Scores of 20 are
    then off by 0.06, and their weights by 6 %.

    **What to do.** `torch.softmax(scores, -1, dtype=torch.float32)`, `scores.astype(jnp.float32)`,
    `force_fp32_for_softmax=True` of linen's attention.
    """

    name = "low-precision-softmax"
    examples = (
        FaultExample(
            _LowPrecisionSoftmaxTruth,
            lambda twin: _LowPrecisionSoftmaxFaulty(),
            normal(4, 32, scale=3.0),
            "computes the softmax in bfloat16",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield both dtypes of 16 bits."""
        for dtype in (torch.bfloat16, torch.float16):
            name = str(dtype).removeprefix("torch.")
            for where, change in scene.replaced(partial(_in, dtype)):
                yield Variant(f"{{side}} computes the softmax in {name}{where}", change)


def _in(dtype: torch.dtype) -> Mapping[str, Handler]:
    def handle(call: FunctionCall) -> Any:
        x, axis = call.args[0], call.get(1, "dim")
        with _disable_current_modes():
            return torch.softmax(x.to(dtype), axis).to(x.dtype)

    return {"softmax": handle}


def _matmul_precision_truth() -> nn.Module:
    return nn.Linear(64, 16)


class _MatmulPrecisionFaulty(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.bfloat16().to(x.dtype)
        return nn.functional.linear(x.bfloat16().to(x.dtype), weight, self.bias)


class MatmulPrecision(Pattern):
    """Matrix products of operands that are rounded to bfloat16.

    **What it is.** A TPU multiplies float32 in one pass of bfloat16 by default: relative L2 of 2.4e-3.
    GPUs do alike with TF32, and autocast everywhere. The sums are kept in float32.

    **What to do.** `jax_default_matmul_precision="highest"` (or `precision=` of a layer),
    `torch_xla.backends.set_mat_mul_precision("highest")`; or compare with the profile `tpu-default`, if
    that is what is wanted.
    """

    name = "matmul-precision"
    examples = (
        FaultExample(
            _matmul_precision_truth,
            lambda twin: loaded(_MatmulPrecisionFaulty(64, 16), twin),
            normal(8, 64),
            "rounds the operands to bfloat16",
        ),
    )

    def variants(self, scene: Scene) -> Iterable[Variant]:
        """Yield products of rounded operands: to bfloat16, and to the 10 bits of TF32."""
        for words, narrow in (
            ("bfloat16", to_bfloat16),
            ("TF32 (10 bits)", _tf32),
        ):
            for where, change in scene.replaced(partial(rounded_products, narrow)):
                yield Variant(
                    f"{{side}} rounds the operands to {words} in matrix products{where}", change
                )


def _tf32(tensor: torch.Tensor) -> torch.Tensor:
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(mantissa * 2**11) / 2**11, exponent)
