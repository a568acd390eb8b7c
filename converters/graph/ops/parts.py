"""Helpers that many lowerings share: axes, indices, dtypes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from converters.graph.expression import call, code, dtype_name, method
from converters.graph.ops.registry import CannotLowerError, Result, Size, Tensor


def axis_of(dim: int, ndim: int) -> int:
    """An axis counted from the front; for torch a number has one axis."""
    return int(dim) % max(ndim, 1)


def axis_name(dim: int, ndim: int) -> int:
    """An axis as a person would write it: the last axis is -1."""
    axis = axis_of(dim, ndim)
    return -1 if axis == max(ndim, 1) - 1 else axis


def axes_names(dims: int | Sequence[int], ndim: int) -> int | tuple[int, ...]:
    """Several axes as a person would write them: one axis is a plain number."""
    if isinstance(dims, int):
        return axis_name(dims, ndim)
    axes = sorted({axis_of(dim, ndim) for dim in dims})
    if len(axes) == 1:
        return axis_name(axes[0], ndim)
    tail = list(range(ndim - len(axes), ndim))
    return tuple(axis - ndim for axis in axes) if axes == tail else tuple(axes)


def known(value: Any) -> bool:
    """Whether a size is already a number."""
    return isinstance(value, int)


def demand(condition: Any, reason: str) -> None:
    """Refuse to lower the operator if the condition does not hold.

    Raises:
        CannotLowerError: the condition does not hold.
    """
    if not condition:
        raise CannotLowerError(reason)


def number(value: Any, what: str) -> int:
    """A size that must be a number when the model is written.

    Raises:
        CannotLowerError: the size depends on the inputs.
    """
    if isinstance(value, int):
        return int(value)
    raise CannotLowerError(f"{what} depends on the sizes of the inputs")


def same_dtype(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether JAX has one dtype for both (it has no 64 bits by default)."""
    return dtype_name(dtype) == dtype_name(other)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """A tensor in another dtype; unchanged if it already has it."""
    if not isinstance(x, Tensor):
        return method(x, "astype", dtype)
    if same_dtype(x.dtype, dtype):
        return x
    return Tensor(x.shape, dtype, method(x, "astype", dtype))


def inexact(x: Tensor, out: Result) -> Any:
    """A tensor in the result's dtype if its own dtype has no fractions."""
    return x if x.dtype.is_floating_point or x.dtype.is_complex else cast(x, out.dtype)


def accumulate(function: str, x: Any, *arguments: Any, **named: Any) -> ast.expr:
    """A call of a function of JAX that would accumulate 16 bits in 16 bits; torch does in float32."""
    if x.dtype in (torch.bfloat16, torch.float16):
        plain = call(function, x, *arguments, **named)
        assert isinstance(plain, ast.Call)
        return ast.Call(call("rounded_once", plain.func), plain.args, plain.keywords)
    return call(function, x, *arguments, **named)


def magnitude(x: Any) -> ast.expr:
    """The absolute value. Torch's gradient at 0 is 0, that of `jnp.abs` is 1."""
    return call("absolute" if x.dtype.is_floating_point else "jnp.abs", x)


def norm_of(x: Any, order: Any, **named: Any) -> ast.expr:
    """A vector's norm. At 0 it has torch's gradient, 0; `jnp.linalg.norm` has NaN or 1 there.

    Sums of squares and magnitudes are accumulated in float32 anyway, those of other powers are not.
    """
    if isinstance(order, float) and order.is_integer():
        order = int(order)
    if order == 0 or x.dtype.is_complex:
        return call("jnp.linalg.vector_norm", x, **({} if order == 2 else {"ord": order}), **named)
    if order == 2:
        return call("safe_sqrt", method(call("jnp.square", x), "sum", **named))
    if order in (1, torch.inf, -torch.inf):
        how = {1: "sum", torch.inf: "max", -torch.inf: "min"}[order]
        return method(magnitude(x), how, **named)
    return accumulate("power_norm", x, order, **named)


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty((1,) * value.ndim, dtype=value.dtype, device="meta")
    return value.hint if isinstance(value, Size) else value


def result_type(operand: Any, other: Any) -> torch.dtype:
    """The dtype that torch computes in for two operands."""
    return torch.result_type(_meta(operand), _meta(other))


def operands(operand: Any, other: Any) -> tuple[Any, Any]:
    """Convert two operands of an arithmetic operator so that JAX computes in torch's dtype.

    In torch a tensor without axes does not widen a tensor with axes. An integer tensor with a
    Python float gives a float32 tensor, which does widen other operands.
    """
    wanted = result_type(operand, other)
    if isinstance(operand, Tensor) and isinstance(other, Tensor):
        if same_dtype(torch.promote_types(operand.dtype, other.dtype), wanted):
            return operand, other
        return cast(operand, wanted), cast(other, wanted)
    if isinstance(operand, Tensor):
        return (operand if same_dtype(operand.dtype, wanted) else cast(operand, wanted)), other
    if isinstance(other, Tensor):
        return operand, (other if same_dtype(other.dtype, wanted) else cast(other, wanted))
    return operand, other


def at(x: Any, ndim: int, items: dict[int, Any]) -> ast.expr:
    """`x[..., item]`: a tensor indexed along some axes; `items` maps an axis to an index or a slice."""
    axes = {axis_of(dim, ndim): item for dim, item in items.items()}
    everything = ast.Slice()
    index: list[Any]
    if min(axes) > ndim - 1 - max(axes) and min(axes) > 1:
        index = [ast.Constant(...)] + [
            axes.get(axis, everything) for axis in range(min(axes), ndim)
        ]
    else:
        index = [axes.get(axis, everything) for axis in range(max(axes) + 1)]
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
    """A setting for each axis. One number stands for all axes; None is the empty list."""
    if not isinstance(value, list | tuple):
        return [value] * count
    return list(value) * count if len(value) == 1 else list(value)
