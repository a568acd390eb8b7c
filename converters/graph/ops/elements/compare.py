"""Comparisons, logic, bit operations, selection."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code, method
from converters.graph.ops.parts import cast, operands, same_dtype
from converters.graph.ops.registry import (
    Result,
    Size,
    Tensor,
    integers,
    op,
    positive,
    real,
    sample,
    truths,
    values,
)

_PAIRS = (
    sample(real(2, 3), real(3)),
    sample(integers(2, 3, high=3), integers(3, high=3)),
    sample(integers(2, 3, high=3), 1),
    sample(integers(2, 3, high=3), 1.5),
    sample(truths(3), truths(3)),
    sample(values(torch.nan, 1.0), values(torch.nan, 1.0)),
    sample(real(3, dtype=torch.bfloat16), positive()),
    sample(real(0, 3), 0),
)


def _comparison(name: str, sign: str) -> None:
    def write(x: Any, other: Any) -> ast.expr:
        x, other = operands(x, other)
        return code(f"{{x}} {sign} {{other}}", x=x, other=other)

    write.__doc__ = f"`x {sign} other`."
    op(f"aten.{name}.Tensor", f"aten.{name}.Scalar", samples=_PAIRS)(write)


for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    _comparison(_name, _sign)


_BITS = (
    sample(truths(2, 3), truths(3)),
    sample(integers(2, 3), integers(3)),
    sample(integers(2, 3), 5),
    sample(truths(3), True),
    sample(truths(3), integers(3)),
)


def _bitwise(name: str, other_name: str | None, sign: str) -> None:
    def write(x: Any, other: Any) -> ast.expr:
        x, other = operands(x, other)
        return code(f"{{x}} {sign} {{other}}", x=x, other=other)

    write.__doc__ = f"`x {sign} other`."
    names = [f"aten.{name}.Tensor", f"aten.{name}.Scalar"]
    if other_name:
        names += [f"aten.{other_name}.Tensor", f"aten.{other_name}.Scalar"]
    cases = (
        _BITS if "shift" not in name else (sample(integers(3), integers(3)), sample(integers(3), 2))
    )
    if name.endswith("shift"):
        names[1] = f"aten.{name}.Tensor_Scalar"
    op(*names, samples=cases)(write)


_bitwise("bitwise_and", "__and__", "&")
_bitwise("bitwise_or", "__or__", "|")
_bitwise("bitwise_xor", "__xor__", "^")
_bitwise("bitwise_left_shift", "__lshift__", "<<")
_bitwise("bitwise_right_shift", "__rshift__", ">>")


@op("aten.bitwise_not.default", samples=(sample(truths(3)), sample(integers(3))))
def bitwise_not(x: Any) -> ast.expr:
    """`~x`."""
    return code("~{x}", x=x)


def _truth(x: Any) -> Any:
    return x if x.dtype == torch.bool else code("{x} != 0", x=x)


@op(
    "aten.logical_not.default",
    samples=(sample(truths(3)), sample(integers(5, high=2)), sample(real(3))),
)
def logical_not(x: Any) -> ast.expr:
    """`~x` for booleans; for numbers, whether they are 0."""
    return code("~{x}", x=x) if x.dtype == torch.bool else code("{x} == 0", x=x)


def _logical(name: str, sign: str) -> None:
    def write(x: Any, other: Any) -> ast.expr:
        return code(f"{{x}} {sign} {{other}}", x=_truth(x), other=_truth(other))

    write.__doc__ = f"`x {sign} other` of truths; a number is true unless it is 0."
    cases = (sample(truths(2, 3), truths(3)), sample(integers(5, high=2), real(5)))
    op(f"aten.{name}.default", samples=cases)(write)


_logical("logical_and", "&")
_logical("logical_or", "|")
_logical("logical_xor", "^")


@op(
    "aten.where.self",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    "aten.where.Scalar",
    samples=(
        sample(truths(2, 3), real(2, 3), real(3)),
        sample(truths(2, 3), real(3), 0.0),
        sample(truths(2, 3), integers(3), 1),
        sample(truths(2, 3), integers(3), 1.5),
        sample(truths(2, 3), -torch.inf, real(3)),
        sample(truths(2, 3), 1, integers(3)),
        sample(truths(2, 3), 1.0, 0.0),
        sample(truths(2, 3), 1, 0),
        sample(truths(2, 3), True, False),
        sample(
            truths(3), real(3, dtype=torch.bfloat16), positive(), gradient=False, why="bfloat16"
        ),
        sample(truths(3, 1), truths(3), truths(1)),
    ),
)
def where(condition: Any, x: Any, other: Any, out: Result) -> ast.expr:
    """`jnp.where`."""
    if not isinstance(x, Tensor) and not isinstance(other, Tensor):
        chosen = call("jnp.where", condition, x, other)
        return chosen if out.dtype == torch.bool else method(chosen, "astype", out.dtype)
    x, other = operands(x, other)
    return call("jnp.where", condition, x, other)


def _as(value: Any, dtype: torch.dtype) -> Any:
    """A number as torch would store it in a dtype."""
    if isinstance(value, Tensor):
        return cast(value, dtype)
    if isinstance(value, Size):
        return value
    if dtype == torch.bool:
        return bool(value)
    return value if dtype.is_floating_point or dtype.is_complex else int(value)


@op(
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    samples=(
        sample(real(2, 3), truths(2, 3), 0.5),
        sample(real(2, 3), truths(3), -torch.inf),
        sample(integers(2, 3), truths(3), 2),
        sample(truths(2, 3), truths(3), 1),
        sample(real(2, 3), truths(3), values(2.0)),
        sample(real(3), truths(2, 3), 0),
    ),
)
def masked_fill(x: Any, mask: Any, value: Any) -> ast.expr:
    """`value` where the mask is true."""
    if isinstance(value, Tensor) and value.ndim == 0 and same_dtype(value.dtype, x.dtype):
        return call("jnp.where", mask, value, x)
    return call("jnp.where", mask, _as(value, x.dtype), x)


@op(
    "aten.isin.Tensor_Tensor",
    "aten.isin.Tensor_Scalar",
    samples=(
        sample(integers(2, 5), integers(3)),
        sample(integers(2, 5), integers(3), invert=True),
        sample(integers(2, 5), 3),
        sample(integers(2, 5), 3, invert=True),
    ),
)
def isin(
    elements: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False
) -> ast.expr:
    """Whether an element is among others."""
    if not isinstance(test_elements, Tensor):
        return code("{x} != {y}" if invert else "{x} == {y}", x=elements, y=test_elements)
    return call("jnp.isin", elements, test_elements, **({"invert": True} if invert else {}))


@op(
    "aten.isclose.default",
    samples=(
        sample(real(3), real(3)),
        sample(values(1.0, torch.nan), values(1.0 + 1e-7, torch.nan), equal_nan=True),
        sample(values(1.0, 2.0), values(1.1, 2.5), 0.2, 0.0),
    ),
)
def isclose(
    x: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> ast.expr:
    """`jnp.isclose`."""
    return call(
        "jnp.isclose", x, other, rtol=rtol, atol=atol, **({"equal_nan": True} if equal_nan else {})
    )
