"""Sums of bfloat16 in the simulation: added in float32, as the compiler of a TPU adds them.

XLA:CPU rounds to bfloat16 after each addition. `torch.ones(8192).bfloat16().sum()` is 256 there, and the
gradient of a convolution's bias loses up to nine tenths. The compiler of a TPU (v4, v5e, v5p, v6e, v7,
libtpu 0.0.42) writes a reduction in bfloat16, too, but its machine code adds in float32 and rounds once, at
the end. CUDA does the same. So the kernels of torch that add get float32 here, and their results are rounded.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

# Kernels that add, and whose tensors are all of one dtype.
SUMS = (
    "sum",
    "sum.dim_IntList",
    "mean",
    "mean.dim",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "linalg_vector_norm",
    "var.correction",
    "std.correction",
    "var_mean.correction",
    "std_mean.correction",
    "cumsum",
    "_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "mse_loss",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "_prelu_kernel_backward",
    "trace",
    "scatter_add",
    "index_add",
    "embedding_dense_backward",
    "_embedding_bag_forward_only",
)
CONVOLUTION = "convolution_backward_overrideable"
_LIBRARIES: list[torch.library.Library] = []


@functools.cache
def install(key: str) -> None:
    """Replace the kernels that add, once.

    Args:
        key: torch's name of the simulated device's kernels: "XLA" or "PrivateUse1".
    """
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)  # the kernels are replaced as long as it lives
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name in SUMS:
            _replace(library, key, name, _in_float32)
        _replace(library, key, CONVOLUTION, _convolution_backward)


def _replace(
    library: torch.library.Library, key: str, name: str, wrap: Callable[..., Callable[..., Any]]
) -> None:
    kernel = torch.library.get_kernel(f"aten::{name}", key)
    library.impl(name, wrap(kernel), key, with_keyset=True, allow_override=True)


def _in_float32(kernel: Any) -> Callable[..., Any]:
    """Let a kernel compute tensors of bfloat16 in float32, and round its results."""

    def run(keys: Any, *args: Any, **options: Any) -> Any:
        dtype = options.get("dtype")
        if dtype is torch.bfloat16:  # torch rounds what it adds first
            args = tuple(v.to(dtype) if isinstance(v, torch.Tensor) else v for v in args)
            options = {**options, "dtype": torch.float32}
        elif dtype is not None or not _is_half(args):
            return kernel.call_boxed(keys, *args, **options)
        results = kernel.call_boxed(keys, *map(_wide, args), **options)
        if isinstance(results, torch.Tensor):
            return _narrow(results)
        return tuple(map(_narrow, results))

    return run


def _convolution_backward(kernel: Any) -> Callable[..., Any]:
    """Let the kernel leave out the gradient of the bias, and add it in float32."""

    def run(keys: Any, gradient: torch.Tensor, *args: Any) -> Any:
        *rest, needed = args
        if not needed[2] or not _is_half((gradient,)):
            return kernel.call_boxed(keys, gradient, *args)
        gradients = kernel.call_boxed(keys, gradient, *rest, [*needed[:2], False])
        axes = [axis for axis in range(gradient.dim()) if axis != 1]
        return gradients[0], gradients[1], gradient.sum(axes)

    return run


def _is_half(args: Iterable[Any]) -> bool:
    """Whether there are tensors of floating point, and all of them are bfloat16."""
    dtypes = {
        value.dtype
        for value in args
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    }
    return dtypes == {torch.bfloat16}


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16:
        return value.to(torch.float32)
    return torch.float32 if value is torch.bfloat16 else value


def _narrow(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.bfloat16) if value.dtype is torch.float32 else value
