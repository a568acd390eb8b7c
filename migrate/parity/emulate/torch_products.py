"""Torch products in passes: matmuls, convolutions, and the gradients of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from migrate.parity.emulate.passes import convolution_on_vector_unit, dot_on_vector_unit, in_passes
from migrate.parity.emulate.torch_split import TorchSplit
from migrate.parity.ground.settings import Precision

_aten = torch.ops.aten
_SPLIT = TorchSplit()

# A product: a function of the precision and the operation's own arguments. None: not rounded on a TPU.
Product: TypeAlias = Callable[..., Any]


def _matrices(precision: Precision, a: Any, b: Any) -> Any:
    multiply = _aten.mm.default if a.dim() == 2 else _aten.bmm.default
    if dot_on_vector_unit(a.shape[-2], b.shape[-1], a.shape[-1]):
        return None
    return in_passes(multiply, a, b, precision, _SPLIT)


def _plus(precision: Precision, added: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _matrices(precision, a, b)
    return None if product is None else _added(added, product, beta, alpha)


def _added(added: Any, product: Any, beta: Any, alpha: Any) -> Any:
    if alpha != 1:
        product = product * alpha
    if beta == 0:  # beta 0: the added tensor is not read, it may be NaN
        return product
    return product + (added if beta == 1 else added * beta)


def _sum_of_products(
    precision: Precision, added: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1
) -> Any:
    """Compute `addbmm`, which also contracts the batch."""
    a = a.transpose(0, 1).flatten(1)
    return _plus(precision, added, a, b.flatten(0, 1), beta, alpha)


def _linear(precision: Precision, x: Any, weight: Any, bias: Any = None) -> Any:
    rows = x.reshape(-1, x.shape[-1])
    product = _matrices(precision, rows, weight.t())
    if product is None:
        return None
    product = product.reshape(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


def _unrounded(precision: Precision, *_: Any) -> Any:
    """Compute a product with a vector without rounding."""
    return None


def _scales_channels(weight: Any, stride: Any, padding: Any, transposed: bool, groups: int) -> bool:
    plain = all(step == 1 for step in stride) and not any(padding)
    first, second = weight.shape[0] // groups, weight.shape[1]
    inputs, outputs = (first, second) if transposed else (second, first)
    return convolution_on_vector_unit(weight.shape[2:], inputs, outputs, plain)


def _convolution(
    precision: Precision,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Any:
    if _scales_channels(weight, stride, padding, transposed, groups):
        return None

    def multiply(x: Any, weight: Any) -> Any:
        return _aten.convolution.default(
            x, weight, None, stride, padding, dilation, transposed, output_padding, groups
        )

    product = in_passes(multiply, x, weight, precision, _SPLIT)
    return product if bias is None else product + bias.reshape(-1, *[1] * (weight.dim() - 2))


def _convolution_backward(
    precision: Precision,
    gradient: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: Any,
) -> Any:
    rest = (bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
    backward = _aten.convolution_backward.default

    def of_input(gradient: Any, weight: Any) -> Any:
        return backward(gradient, x, weight, *rest, [True, False, False])[0]

    def of_weight(gradient: Any, x: Any) -> Any:
        return backward(gradient, x, weight, *rest, [False, True, False])[1]

    results: list[Any] = [None, None, None]
    if wanted[0]:
        scales = _scales_channels(weight, stride, padding, transposed, groups)
        results[0] = (
            of_input(gradient, weight)
            if scales
            else in_passes(of_input, gradient, weight, precision, _SPLIT)
        )
    if wanted[1]:
        results[1] = in_passes(of_weight, gradient, x, precision, _SPLIT)
    if wanted[2]:
        results[2] = gradient.sum([0, *range(2, gradient.dim())])
    return tuple(results)


PRODUCTS: dict[str, Product] = {
    "mm": _matrices,
    "bmm": _matrices,
    "addmm": _plus,
    "baddbmm": _plus,
    "addbmm": _sum_of_products,
    "linear": _linear,
    "mv": _unrounded,
    "addmv": _unrounded,
    "dot": _unrounded,
    "vdot": _unrounded,
    "convolution": _convolution,
    "convolution_overrideable": _convolution,
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
}
