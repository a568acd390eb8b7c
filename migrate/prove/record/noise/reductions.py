"""Sums, means and losses that round as on XLA: one number is added after the other.

XLA:CPU adds the numbers of a window one after the other, then the windows. A window spans 32 numbers of each
summed axis; torch adds pairs of partial sums instead. Measured on `mse_loss` of numbers between 0 and 1,
relative to float64 (torch 2.9, torch_xla 2.9): torch 2e-8 to 9e-8 everywhere, XLA 7.4e-6 over 32x1x32x32 (bit
for bit the result here), 3.0e-6 over 16x3x128x128 and 1.3e-5 over 32x3x256x256. This alone can exceed the
fixed limit of a proof. Gradients do not depend on it. Where the CPU has AVX2 but not AVX-512, XLA
adds several numbers at once and is off by less (`mse_loss` over 32x32x32: 1.1e-7 for 7.3e-6): this is then an
upper bound.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from migrate.prove.recording.operators import put

# Numbers of one axis in a window of XLA:CPU, if the axis is longer.
_WINDOW = 32
# Whether a loss runs: the sums inside it are not replaced a second time.
_in_loss = [False]


def install(is_real: Callable[[Any], bool]) -> None:
    """Replace `sum` and `mean` of torch, and the losses of `torch.nn.functional`.

    Args:
        is_real: whether a value is a plain tensor of numbers, not one of a trace.
    """
    for owner in (torch, torch.Tensor):
        for name in ("sum", "mean"):
            put(owner, name, _reduction(getattr(owner, name), is_real))
    for name in loss_names():
        put(torch.nn.functional, name, _loss(getattr(torch.nn.functional, name), is_real))


def loss_names() -> list[str]:
    """Names of the functions of `torch.nn.functional` that reduce a loss."""
    return [
        name
        for name, value in vars(torch.nn.functional).items()
        if not name.startswith("_") and inspect.isfunction(inspect.unwrap(value))
        if "reduction" in inspect.signature(value).parameters
    ]


def _reduction(reduce: Callable[..., Any], is_real: Callable[[Any], bool]) -> Callable[..., Any]:
    is_mean = reduce.__name__ == "mean"

    @functools.wraps(reduce)
    def reduction(*args: Any, **kwargs: Any) -> Any:
        result = reduce(*args, **kwargs)
        value: Any = args[0] if args else kwargs.get("input")
        if _in_loss[0] or not _is_single(value, is_real) or result.dtype != torch.float32:
            return result
        if "out" in kwargs or not result.numel() or not value.numel():
            return result
        axes = _axes(args[1:], kwargs) or tuple(range(value.dim()))
        count = value.numel() // result.numel()
        off = _off(value.detach(), axes)
        return result + (off / count if is_mean else off).view(result.shape).to(result)

    return reduction


def _loss(compute: Callable[..., Any], is_real: Callable[[Any], bool]) -> Callable[..., Any]:
    signature = inspect.signature(compute)

    @functools.wraps(compute)
    def loss(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        how = bound.arguments.get("reduction", signature.parameters["reduction"].default)
        outermost, _in_loss[0] = not _in_loss[0], True
        try:
            result = compute(*args, **kwargs)
            if not outermost or how == "none" or not _is_single(result, is_real):
                return result
            bound.arguments["reduction"] = "none"
            with torch.no_grad():
                terms = compute(*bound.args, **bound.kwargs)
        finally:
            _in_loss[0] = not outermost
        if not _is_single(terms, is_real):
            return result
        # Relative: a mean over weighted classes is not divided by the number of terms.
        exact = terms.double().sum()
        share = torch.nan_to_num(
            _off(terms, tuple(range(terms.dim()))).sum() / exact, 0.0, 0.0, 0.0
        )
        return result + (result.detach() * share).to(result)

    return loss


def _is_single(value: Any, is_real: Callable[[Any], bool]) -> bool:
    """Whether a value is summed here in float32; XLA rounds its own sums, and a step may forbid a read."""
    return is_real(value) and value.dtype == torch.float32 and value.device.type != "xla"


def _axes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    axes = kwargs.get("dim", kwargs.get("axis", args[0] if args else None))
    if isinstance(axes, int):
        return (axes,)
    return tuple(axes or ())


def _off(terms: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """Difference between the sums over `axes` as XLA rounds them and the exact sums, flat, in float64."""
    values = terms.movedim(axes, tuple(range(len(axes)))).cpu().numpy()
    summed, kept = values.shape[: len(axes)], int(np.prod(values.shape[len(axes) :]))
    padding, split = [], []
    for size in summed:
        missing = -size % _WINDOW if size > _WINDOW else 0
        padding.append((missing // 2, missing - missing // 2))
        split += [(size + missing) // _WINDOW, _WINDOW] if size > _WINDOW else [1, size]
    values = values.reshape(*summed, kept)
    windows = np.pad(values, [*padding, (0, 0)]).reshape(*split, kept)
    inner = tuple(range(1, len(split), 2))
    windows = windows.transpose(*inner, *range(0, len(split), 2), len(split))
    length = int(np.prod([windows.shape[axis] for axis in range(len(inner))]))
    sums = _sequential(_sequential(windows.reshape(length, -1)).reshape(-1, kept))
    exact = values.reshape(-1, kept).sum(0, dtype=np.float64)
    off = torch.from_numpy(sums.astype(np.float64) - exact)
    return torch.nan_to_num(off, 0.0, 0.0, 0.0).to(terms.device)


def _sequential(rows: Any) -> Any:
    """Sum of the rows in float32, one after the other."""
    if rows.shape[1] == 1:
        # numpy adds the numbers of a vector in pairs.
        return np.add.accumulate(rows[:, 0], dtype=np.float32)[-1:]
    return np.ascontiguousarray(rows).sum(0, dtype=np.float32)
