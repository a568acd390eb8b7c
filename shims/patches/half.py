"""Convolutions in float16 on the CPU, whose native backward pass is 36 to 370 times slower."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def kernels() -> dict[Any, Callable[..., Any]]:
    """Return the replacement of torch's convolution in training.

    The arguments are rounded to float16. The convolution and its gradients are computed in float32,
    and each is rounded to float16, like a GPU's kernels, which accumulate in float32.
    """
    return {
        function: functools.partial(_convolution, function)
        for function in (
            functional.conv1d,
            functional.conv2d,
            functional.conv3d,
            functional.conv_transpose1d,
            functional.conv_transpose2d,
            functional.conv_transpose3d,
        )
    }


def _convolution(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    values = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    trained = torch.is_grad_enabled() and any(value.requires_grad for value in values)
    if not trained or not _in_half(values):
        return function(*args, **kwargs)
    with torch.autocast("cpu", enabled=False):
        result = function(
            *(_rounded(arg) for arg in args),
            **{name: _rounded(value) for name, value in kwargs.items()},
        )
    return result.half()


def _in_half(values: list[torch.Tensor]) -> bool:
    if torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu") is torch.float16 and all(
            value.dtype in (torch.float32, torch.float16, torch.bfloat16) for value in values
        )
    # Mixed dtypes are left to torch, which refuses them.
    return all(value.dtype is torch.float16 for value in values)


def _rounded(value: Any) -> Any:
    return value.half().float() if isinstance(value, torch.Tensor) else value
