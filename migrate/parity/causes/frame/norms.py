"""Normalization written out, so that each part of it can be computed differently."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from migrate.parity.causes.frame.functions import FunctionCall, Handler


@dataclass(frozen=True)
class Moments:
    """Values to normalize, and their moments.

    Attributes:
        x: the values, which are normalized over `axes`.
        mean, variance: moments with the axes kept, of size 1. RMS norms have the mean 0.
        eps: number added to the variance.
        count: number of values in one variance.
    """

    x: Any
    axes: tuple[int, ...]
    mean: Any
    variance: Any
    eps: float
    count: int


How = Callable[[Moments], Any]
NORMS = ("layer_norm", "group_norm", "instance_norm", "batch_norm", "rms_norm")
# Position of eps among the arguments of each.
_EPS = {"layer_norm": 4, "group_norm": 4, "instance_norm": 7, "batch_norm": 7, "rms_norm": 3}


def plain(moments: Moments) -> Any:
    """Normalize as torch does."""
    return (moments.x - moments.mean) / torch.sqrt(moments.variance + moments.eps)


def eps_of(call: FunctionCall) -> float | None:
    """Return the number that a norm adds to the variance."""
    value = call.get(_EPS[call.name], "eps", 1e-5)
    return None if value is None else float(value)


def with_eps(call: FunctionCall, eps: float) -> FunctionCall:
    """Copy a call of a norm with another eps."""
    return call.but(_EPS[call.name], "eps", eps)


def written_out(how: How, names: tuple[str, ...] = NORMS) -> Mapping[str, Handler]:
    """Return handlers of torch's norms that normalize as `how` does."""
    return {name: lambda call: _norm(call, how) for name in names}


def _norm(call: FunctionCall, how: How) -> Any:
    x = call.args[0]
    if call.name in ("layer_norm", "rms_norm"):
        axes = tuple(range(-len(call.get(1, "normalized_shape")), 0))
        eps = eps_of(call)
        eps = torch.finfo(torch.float32).eps if eps is None else eps
        centered = call.name == "layer_norm"
        mean = x.mean(axes, keepdim=True) if centered else torch.zeros((), dtype=x.dtype)
        variance = (x - mean).square().mean(axes, keepdim=True)
        count = math.prod(x.shape[axis] for axis in axes)
        y = how(Moments(x, axes, mean, variance, eps, count))
        return _affine(y, call.get(2, "weight"), call.get(3, "bias") if centered else None)
    if call.name == "batch_norm":
        shape = (1, -1, *[1] * (x.ndim - 2))
        axes = (0, *range(2, x.ndim))
        running = (call.get(1, "running_mean"), call.get(2, "running_var"))
        mean, variance = (tensor.reshape(shape) for tensor in running)
        y = how(Moments(x, axes, mean, variance, eps_of(call) or 0.0, x.numel() // x.shape[1]))
        weight, bias = call.get(3, "weight"), call.get(4, "bias")
    else:
        groups = call.get(1, "num_groups") if call.name == "group_norm" else x.shape[1]
        parts = x.reshape(x.shape[0], groups, -1)
        mean = parts.mean(-1, keepdim=True)
        variance = (parts - mean).square().mean(-1, keepdim=True)
        y = how(Moments(parts, (-1,), mean, variance, eps_of(call) or 0.0, parts.shape[-1]))
        y = y.reshape(x.shape)
        shape = (1, -1, *[1] * (x.ndim - 2))
        start = 2 if call.name == "group_norm" else 3
        weight, bias = call.get(start, "weight"), call.get(start + 1, "bias")
    return _affine(y, _shaped(weight, shape), _shaped(bias, shape))


def _shaped(tensor: Any, shape: tuple[int, ...]) -> Any:
    return None if tensor is None else tensor.reshape(shape)


def _affine(y: Any, weight: Any, bias: Any) -> Any:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
