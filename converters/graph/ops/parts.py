"""What many lowerings share: axes, indices, dtypes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from converters.graph.expression import code, dtype_name, method
from converters.graph.ops.registry import CannotLowerError, Result, Size, Tensor


def axis_of(dim: int, ndim: int) -> int:
    """An axis counted from the front; a number has one to torch."""
    return int(dim) % max(ndim, 1)


def axis_name(dim: int, ndim: int) -> int:
    """An axis as one would write it: the last one is -1."""
    axis = axis_of(dim, ndim)
    return -1 if axis == max(ndim, 1) - 1 else axis


def axes_names(dims: int | Sequence[int], ndim: int) -> int | tuple[int, ...]:
    """Several axes as one would write them: a single one is a number."""
    if isinstance(dims, int):
        return axis_name(dims, ndim)
    axes = sorted({axis_of(dim, ndim) for dim in dims})
    if len(axes) == 1:
        return axis_name(axes[0], ndim)
    tail = list(range(ndim - len(axes), ndim))
    return tuple(axis - ndim for axis in axes) if axes == tail else tuple(axes)


def known(value: Any) -> bool:
    """Whether this size is a number already."""
    return isinstance(value, int)


def sizes_known(x: Result) -> bool:
    """Whether no side of a tensor depends on the inputs."""
    return all(isinstance(side, int) for side in x.shape)


def demand(condition: Any, reason: str) -> None:
    """Refuse to write what is not so.

    Raises:
        CannotLowerError: the condition does not hold.
    """
    if not condition:
        raise CannotLowerError(reason)


def number(value: Any, what: str) -> int:
    """A size that must be a number when the model is written.

    Raises:
        CannotLowerError: it depends on the inputs.
    """
    if isinstance(value, int):
        return int(value)
    raise CannotLowerError(f"{what} depends on the sizes of the inputs")


def same_dtype(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether JAX has one dtype for both (it has no 64 bits by default)."""
    return dtype_name(one) == dtype_name(other)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """A tensor in another dtype; itself if it has it."""
    if not isinstance(x, Tensor):
        return method(x, "astype", dtype)
    if same_dtype(x.dtype, dtype):
        return x
    return Tensor(x.shape, dtype, method(x, "astype", dtype))


def inexact(x: Tensor, out: Result) -> Any:
    """A tensor as what the result is, if it has no fractions itself."""
    return x if x.dtype.is_floating_point or x.dtype.is_complex else cast(x, out.dtype)


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty((1,) * value.ndim, dtype=value.dtype, device="meta")
    return value.hint if isinstance(value, Size) else value


def result_type(one: Any, other: Any) -> torch.dtype:
    """What torch computes in, given two operands."""
    return torch.result_type(_meta(one), _meta(other))


def operands(one: Any, other: Any) -> tuple[Any, Any]:
    """Two operands of an arithmetic operator, so that JAX computes in torch's dtype.

    In torch a tensor without axes does not widen one with axes, and what is made of an integer and a Python
    number with a fraction is float32 for good.
    """
    wanted = result_type(one, other)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if same_dtype(torch.promote_types(one.dtype, other.dtype), wanted):
            return one, other
        return cast(one, wanted), cast(other, wanted)
    if isinstance(one, Tensor):
        return (one if same_dtype(one.dtype, wanted) else cast(one, wanted)), other
    if isinstance(other, Tensor):
        return one, (other if same_dtype(other.dtype, wanted) else cast(other, wanted))
    return one, other


def at(x: Any, ndim: int, items: dict[int, Any]) -> ast.expr:
    """`x[..., item]`: a tensor indexed along some axes; `items` maps an axis to an index or a slice."""
    axes = {axis_of(dim, ndim): item for dim, item in items.items()}
    everything = ast.Slice()
    index: list[Any]
    if min(axes) > ndim - 1 - max(axes) and min(axes) > 1:
        index = [ast.Constant(...)] + [axes.get(one, everything) for one in range(min(axes), ndim)]
    else:
        index = [axes.get(one, everything) for one in range(max(axes) + 1)]
    if len(index) == 1:
        return ast.Subscript(code("{x}", x=x), index[0], ast.Load())
    return ast.Subscript(code("{x}", x=x), ast.Tuple(index, ast.Load()), ast.Load())


def part(start: Any = None, stop: Any = None, step: Any = None) -> ast.Slice:
    """`start:stop:step`."""

    def one(value: Any) -> ast.expr | None:
        return None if value is None else code("{value}", value=value)

    return ast.Slice(one(start), one(stop), one(step))


def tupled(*values: Any) -> ast.expr:
    """`(a, b, ...)`."""
    return code("({*values},)", values=values)


def listed(value: Any, count: int) -> list[Any]:
    """A setting for each axis: one number stands for all; none is the empty list."""
    if not isinstance(value, list | tuple):
        return [value] * count
    return list(value) * count if len(value) == 1 else list(value)
