"""Elementwise arithmetic."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code
from converters.graph.ops.parts import cast, demand, inexact, magnitude, operands, same_dtype
from converters.graph.ops.registry import (
    Result,
    Tensor,
    integers,
    op,
    positive,
    real,
    sample,
    truths,
    values,
)

_BFLOAT = torch.bfloat16

# Pairs of operands by torch's promotion rules: dtypes, tensors without axes, Python numbers, no
# elements.
_MIXED = (
    sample(real(2, 3), real(3)),
    sample(real(2, 3), 2.5),
    sample(integers(2, 3, low=1), integers(3, low=1, dtype=torch.int32)),
    sample(integers(2, 3), 2),
    sample(integers(2, 3), 2.5),
    sample(real(2, 1, dtype=_BFLOAT), positive(), gradient=False, why="bfloat16"),
    sample(integers(2, 1), real(3, dtype=_BFLOAT), gradient=False, why="bfloat16"),
    sample(real(0, 3), real(3)),
)


def _scaled(other: Any, alpha: Any) -> Any:
    return other if alpha == 1 else code("{alpha} * {other}", alpha=alpha, other=other)


@op(
    "aten.add.Tensor",
    "aten.add.Scalar",
    samples=(*_MIXED, sample(real(2, 3), 2, alpha=3), sample(truths(3), truths(3))),
)
def add(x: Any, other: Any, alpha: Any = 1) -> ast.expr:
    """`x + alpha * other`."""
    x, other = operands(x, other)
    return code("{x} + {other}", x=x, other=_scaled(other, alpha))


@op(
    "aten.sub.Tensor",
    "aten.sub.Scalar",
    samples=(*_MIXED, sample(real(2, 3), real(2, 1)), sample(real(2, 3), real(3), alpha=0.5)),
)
def sub(x: Any, other: Any, alpha: Any = 1) -> ast.expr:
    """`x - alpha * other`."""
    x, other = operands(x, other)
    return code("{x} - {other}", x=x, other=_scaled(other, alpha))


@op(
    "aten.rsub.Scalar",
    "aten.rsub.Tensor",
    samples=(*_MIXED, sample(real(2, 3), 1.0, 2), sample(real(2), real(3, 1), alpha=2)),
)
def rsub(x: Any, other: Any, alpha: Any = 1) -> ast.expr:
    """`other - alpha * x`."""
    x, other = operands(x, other)
    return code("{other} - {x}", x=_scaled(x, alpha), other=other)


@op(
    "aten.mul.Tensor",
    "aten.mul.Scalar",
    samples=(*_MIXED, sample(truths(3), truths(3)), sample(truths(3), real(2, 1))),
)
def mul(x: Any, other: Any) -> ast.expr:
    """`x * other`."""
    x, other = operands(x, other)
    return code("{x} * {other}", x=x, other=other)


@op(
    "aten.div.Tensor",
    "aten.div.Scalar",
    "aten.true_divide.Tensor",
    "aten.true_divide.Scalar",
    samples=(
        *_MIXED,
        sample(integers(3), 4),
        sample(integers(3), integers(3, low=1, dtype=torch.int8)),
        sample(truths(3), 2),
        sample(values(1.0, 0.0), 0.0, gradient=False, why="not finite"),
    ),
)
def div(x: Any, other: Any, out: Result) -> ast.expr:
    """`x / other`; integers give fractions too."""
    x, other = operands(x, other)
    if isinstance(x, Tensor) and not (x.dtype.is_floating_point or x.dtype.is_complex):
        x = cast(x, out.dtype)
    return code("{x} / {other}", x=x, other=other)


_DIVISIONS = (
    sample(real(2, 3), positive(3)),
    sample(integers(4, low=-9), values(4, -4, 3, -2)),
    sample(integers(4, low=-9), 4),
    sample(integers(4, low=-9), 2.5),
    sample(values(7.0, -7.0, 7.0, -7.0, 0.5), values(2.0, 2.0, -2.0, -2.0, 0.1)),
)


@op(
    "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
    samples=(
        *tuple(
            sample(
                *operands, rounding_mode=mode, gradient=False, why="it is zero nearly everywhere"
            )
            for mode in ("floor", "trunc")
            for operands in (
                (real(2, 3), positive(3)),
                (integers(4, low=-9), values(4, -4, 3, -2)),
                (integers(4, low=-9), 4),
                (integers(4, low=-9), 2.5),
                (values(7.0, -7.0, 7.0, -7.0, 0.5), values(2.0, 2.0, -2.0, -2.0, 0.1)),
            )
        ),
        sample(real(2, 3), real(3), rounding_mode=None),
        sample(integers(3), 4, rounding_mode=None),
    ),
)
def div_mode(x: Any, other: Any, rounding_mode: str | None, out: Result) -> ast.expr:
    """`x // other`, rounded towards zero, or the exact quotient."""
    if rounding_mode is None:
        return div(x, other, out)
    x, other = operands(x, other)
    if rounding_mode == "floor":
        return code("{x} // {other}", x=x, other=other)
    if out.dtype.is_floating_point:
        return call("jnp.trunc", code("{x} / {other}", x=x, other=other))
    return call("divide_towards_zero", x, other)


@op(
    "aten.floor_divide.default",
    "aten.floor_divide.Scalar",
    samples=(*_DIVISIONS[1:4], sample(real(2, 3), positive(3), gradient=False, why="zero")),
)
def floor_divide(x: Any, other: Any) -> ast.expr:
    """`x // other`."""
    x, other = operands(x, other)
    return code("{x} // {other}", x=x, other=other)


@op(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    samples=(*_DIVISIONS[:4], sample(real(5), -1.5), sample(real(5), real(5))),
)
def remainder(x: Any, other: Any) -> ast.expr:
    """`x % other`: with the sign of `other`."""
    x, other = operands(x, other)
    return code("{x} % {other}", x=x, other=other)


@op("aten.fmod.Tensor", "aten.fmod.Scalar", samples=_DIVISIONS)
def fmod(x: Any, other: Any) -> ast.expr:
    """The remainder with the sign of `x`."""
    x, other = operands(x, other)
    return call("jnp.fmod", x, other)


@op(
    "aten.pow.Tensor_Scalar",
    samples=(
        sample(real(2, 3), 2),
        sample(real(2, 3), 3.0),
        sample(positive(2, 3), 0.5),
        sample(positive(2, 3), -0.5),
        sample(positive(2, 3), -1),
        sample(positive(2, 3), 1.7),
        sample(real(2, 3), 1),
        sample(real(2, 3), 0),
        sample(integers(3), 2),
        sample(integers(3), 2.0),
        sample(integers(3), 0.5),
    ),
)
def pow_scalar(x: Any, exponent: Any) -> ast.expr:
    """`x ** exponent`."""
    x, exponent = operands(x, exponent)
    if isinstance(exponent, float) and exponent.is_integer():
        exponent = int(exponent)
    if exponent == 2:
        return call("jnp.square", x)
    if exponent == 0.5:
        return call("jnp.sqrt", x)
    if exponent == -0.5:
        return call("jax.lax.rsqrt", x)
    return code("{x} ** {exponent}", x=x, exponent=exponent)


@op(
    "aten.pow.Scalar",
    samples=(
        sample(2.5, real(2, 3)),
        sample(10000, real(3)),
        sample(2, integers(3)),
        sample(2, values(-1, 0, 3)),
        sample(2.0, integers(3)),
    ),
)
def scalar_pow(x: Any, exponent: Any, out: Result) -> ast.expr:
    """`x ** exponent` of a number."""
    return _power(x, exponent, out)


@op(
    "aten.pow.Tensor_Tensor",
    samples=(
        sample(positive(2, 3), real(3)),
        sample(integers(3), integers(3, high=4)),
        sample(integers(3, low=1), real(3)),
        sample(positive(2, 3), positive()),
        sample(values(-2, -1, -1, 0, 1, 2), values(-1, -2, -3, -1, -4, -2)),
    ),
)
def pow_tensor(x: Any, exponent: Any, out: Result) -> ast.expr:
    """`x ** exponent` of two tensors."""
    return _power(x, exponent, out)


def _power(x: Any, exponent: Any, out: Result) -> ast.expr:
    x, exponent = operands(x, exponent)
    whole = not out.dtype.is_floating_point and not out.dtype.is_complex
    if whole and exponent.dtype not in (torch.bool, torch.uint8):  # it may be below zero
        return call("integer_power", x, exponent)
    if exponent.dtype.is_floating_point and (isinstance(x, Tensor) or x == 0):
        return call("power", x, exponent)
    return code("{x} ** {exponent}", x=x, exponent=exponent)


@op("aten.neg.default", samples=(sample(real(2, 3)), sample(integers(3)), sample(real(0))))
def neg(x: Any) -> ast.expr:
    """`-x`."""
    return code("-{x}", x=x)


@op("aten.reciprocal.default", samples=(sample(positive(2, 3)), sample(integers(3, low=1))))
def reciprocal(x: Any, out: Result) -> ast.expr:
    """`1 / x`."""
    return code("1 / {x}", x=inexact(x, out))


@op("aten.rsqrt.default", samples=(sample(positive(2, 3)), sample(integers(3, low=1))))
def rsqrt(x: Any, out: Result) -> ast.expr:
    """`1 / sqrt(x)`."""
    return call("jax.lax.rsqrt", inexact(x, out))


@op(
    "aten.square.default",
    samples=(sample(real(2, 3)), sample(integers(3))),
)
def square(x: Any) -> ast.expr:
    """`x * x`."""
    return call("jnp.square", x)


@op(
    "aten.maximum.default",
    "aten.max.other",
    samples=(
        *_MIXED[:1],
        _MIXED[2],
        _MIXED[5],
        sample(values(1.0, torch.nan), values(torch.nan, 1.0), gradient=False, why="NaN"),
    ),
)
def maximum(x: Any, other: Any) -> ast.expr:
    """The larger of two, NaN if either is NaN."""
    return call("jnp.maximum", *operands(x, other))


@op(
    "aten.minimum.default",
    "aten.min.other",
    samples=(
        *_MIXED[:1],
        _MIXED[2],
        _MIXED[5],
        sample(values(1.0, torch.nan), values(torch.nan, 1.0), gradient=False, why="NaN"),
    ),
)
def minimum(x: Any, other: Any) -> ast.expr:
    """The smaller of two, NaN if either is NaN."""
    return call("jnp.minimum", *operands(x, other))


@op(
    "aten.fmax.default",
    samples=(
        sample(real(3), real(3)),
        sample(values(1.0, torch.nan), real(2), gradient=False, why="NaN"),
    ),
)
def fmax(x: Any, other: Any) -> ast.expr:
    """The larger of two, ignoring NaN."""
    x, other = operands(x, other)
    return code("jnp.where(({x} >= {y}) | jnp.isnan({y}), {x}, {y})", x=x, y=other)


@op(
    "aten.fmin.default",
    samples=(
        sample(real(3), real(3)),
        sample(values(1.0, torch.nan), real(2), gradient=False, why="NaN"),
    ),
)
def fmin(x: Any, other: Any) -> ast.expr:
    """The smaller of two, ignoring NaN."""
    x, other = operands(x, other)
    return code("jnp.where(({x} <= {y}) | jnp.isnan({y}), {x}, {y})", x=x, y=other)


@op(
    "aten.lerp.Scalar",
    "aten.lerp.Tensor",
    samples=(sample(real(2, 3), real(3), 0.25), sample(real(2, 3), real(2, 1), real(3))),
)
def lerp(x: Any, end: Any, weight: Any) -> ast.expr:
    """`x + weight * (end - x)`."""
    return code("{x} + {weight} * ({end} - {x})", x=x, end=end, weight=weight)


@op(
    "aten.addcmul.default",
    samples=(
        sample(real(2, 3), real(3), real(2, 1)),
        sample(real(2, 3), real(3), real(3), value=0.5),
    ),
)
def addcmul(x: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> ast.expr:
    """`x + value * tensor1 * tensor2`."""
    return code("{x} + {one} * {other}", x=x, one=_scaled(tensor1, value), other=tensor2)


@op(
    "aten.addcdiv.default",
    samples=(
        sample(real(2, 3), real(3), positive(2, 1)),
        sample(real(2, 3), real(3), positive(3), value=0.5),
    ),
)
def addcdiv(x: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> ast.expr:
    """`x + value * tensor1 / tensor2`."""
    return code("{x} + {one} / {other}", x=x, one=_scaled(tensor1, value), other=tensor2)


def _pairwise(*names: str, function: str, samples: Any, to_real: bool = True) -> None:
    def write(x: Any, other: Any, out: Result) -> ast.expr:
        demand(function != "jnp.heaviside" or out.dtype.is_floating_point, "a step of integers")
        first, two = operands(x, other)
        if to_real and out.dtype.is_floating_point:
            first = cast(first, out.dtype) if isinstance(first, Tensor) else first
            two = cast(two, out.dtype) if isinstance(two, Tensor) else two
        return call(function, first, two)

    op(*names, samples=samples)(write)


_REALS = (sample(real(2, 3), real(3)), sample(real(0), real(1)))
_pairwise("aten.atan2.default", function="jnp.arctan2", samples=_REALS)
_pairwise("aten.hypot.default", function="jnp.hypot", samples=_REALS)
_pairwise("aten.logaddexp.default", function="jnp.logaddexp", samples=_REALS)
_pairwise("aten.logaddexp2.default", function="jnp.logaddexp2", samples=_REALS)


@op(
    "aten.copysign.Tensor",
    "aten.copysign.Scalar",
    samples=(sample(real(2, 3), real(3)), sample(real(3), -2.0)),
)
def copysign(x: Any, other: Any, out: Result) -> ast.expr:
    """The size of one number with the sign of another; at 0 the gradient is 0."""
    size, sign_of = operands(x, other)
    if isinstance(sign_of, Tensor):
        sign_of = cast(sign_of, out.dtype)
    return call("jnp.copysign", magnitude(cast(size, out.dtype)), sign_of)


_pairwise(
    "aten.heaviside.default",
    function="jnp.heaviside",
    samples=(sample(values(-1.0, 0.0, 2.0), real(3), gradient=False, why="torch has none"),),
)
_pairwise("aten.gcd.default", function="jnp.gcd", samples=(sample(integers(5), integers(5)),))
_pairwise("aten.lcm.default", function="jnp.lcm", samples=(sample(integers(5), integers(5)),))
_pairwise(
    "aten.xlogy.Tensor",
    "aten.special_xlogy.default",
    function="xlogy",
    samples=(
        sample(real(2, 3), positive(3)),
        sample(values(0.0, 1.0), values(0.0, 2.0), gradient=False, why="not finite"),
    ),
)


@op(
    "aten.nan_to_num.default",
    samples=(
        sample(values(1.0, torch.nan, torch.inf, -torch.inf)),
        sample(values(1.0, torch.nan, torch.inf, -torch.inf), 1.0, 2.0, 3.0),
        sample(integers(3)),
    ),
)
def nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> ast.expr:
    """Replace NaN and the infinities by numbers."""
    if not x.dtype.is_floating_point:
        return code("{x}", x=x)
    replacements = {"nan": nan, "posinf": posinf, "neginf": neginf}
    return call(
        "jnp.nan_to_num",
        x,
        **{name: number for name, number in replacements.items() if number is not None},
    )


@op(
    "aten.round.default",
    "aten.round.decimals",
    samples=(
        sample(values(0.5, 1.5, 2.5, -0.5, 1.2)),
        sample(integers(3)),
        sample(values(0.125, 1.377, -2.55), decimals=1, gradient=False, why="zero"),
    ),
)
def rounded(x: Any, decimals: int = 0) -> ast.expr:
    """The nearest integer; halves round to even."""
    if not x.dtype.is_floating_point:
        return code("{x}", x=x)
    return call("jnp.round", x, decimals) if decimals else call("jnp.round", x)


def _whole(name: str, function: str) -> None:
    def write(x: Any) -> ast.expr:
        return call(function, x) if x.dtype.is_floating_point else code("{x}", x=x)

    cases = (sample(values(0.5, 1.5, -0.5, -1.2, 2.0)), sample(integers(3)))
    op(f"aten.{name}.default", samples=cases)(write)


_whole("floor", "jnp.floor")
_whole("ceil", "jnp.ceil")
_whole("trunc", "jnp.trunc")
_whole("fix", "jnp.trunc")


@op("aten.frac.default", samples=(sample(values(0.5, 1.5, -0.5, -1.2)),))
def frac(x: Any) -> ast.expr:
    """The fractional part of a number."""
    return code("{x} - jnp.trunc({x})", x=x)


@op(
    "aten.clamp.default",
    "aten.clip.default",
    "aten.clamp.Tensor",
    "aten.clip.Tensor",
    samples=(
        sample(real(2, 3), -0.5, 0.5),
        sample(real(2, 3), 0.0),
        sample(real(2, 3), None, 0.0),
        sample(values(0.0, 1.0, -1.0), 0.0),
        sample(values(0.0, 1.0, -1.0), None, 0),
        sample(values(0.0, 2.0, -1.0), 0, 1.5),
        sample(values(0.0, 2.0, -1.0), -0.5, 0),
        sample(values(1.0, 2.0), values(torch.nan, 0.0), gradient=False, why="NaN"),
        sample(values(1.0, 2.0), None, values(torch.nan, 0.0), gradient=False, why="NaN"),
        sample(integers(5), 2, 4),
        sample(integers(5), 2.5),
        sample(real(2, 3), max=1),
        sample(real(2, 3), real(3), None),
        sample(real(2, 3), None, real(2, 1)),
        sample(real(2, 3), real(3), real(2, 1)),
        sample(real(2, 3, dtype=_BFLOAT), positive(), gradient=False, why="bfloat16"),
    ),
)
def clamp(x: Any, min: Any = None, max: Any = None) -> ast.expr:  # noqa: A002
    """Clamp between `min` and `max`."""
    for bound in (min, max):
        if bound is not None:
            x = operands(x, bound)[0]
    bounds = {"min": min, "max": max}
    wanted = {name: bound for name, bound in bounds.items() if bound is not None}
    if isinstance(x, Tensor):
        for name, bound in wanted.items():
            if isinstance(bound, Tensor) and not same_dtype(bound.dtype, x.dtype):
                wanted[name] = cast(bound, x.dtype)
        if x.dtype.is_floating_point:
            return _clamped(x, wanted)
    if len(wanted) == 2:
        return call("jnp.clip", x, wanted["min"], wanted["max"])
    if "min" in wanted:
        return call("jnp.maximum", x, wanted["min"])
    demand(wanted, "clamp without a bound")
    return call("jnp.minimum", x, wanted["max"])


def _clamped(x: Any, bounds: dict[str, Any]) -> ast.expr:
    """An element at a bound has torch's whole gradient; jnp.maximum and jnp.clip give it a half."""
    demand(bounds, "clamp without a bound")
    ((name, bound), *others) = bounds.items()
    if not others and not isinstance(bound, Tensor) and bound == 0:
        side = "<" if name == "min" else ">"
        return code(f"jnp.where({{x}} {side} 0, 0, {{x}})", x=x)
    if name == "max":
        return call("clamp", x, high=bound)
    return call("clamp", x, *bounds.values())


@op(
    "aten.clamp_min.default",
    "aten.clamp_min.Tensor",
    samples=(sample(real(2, 3), 0), sample(real(2, 3), real(3)), sample(integers(3), 2.5)),
)
def clamp_min(x: Any, min: Any) -> ast.expr:  # noqa: A002
    """Clamp from below at `min`."""
    return clamp(x, min)


@op(
    "aten.clamp_max.default",
    "aten.clamp_max.Tensor",
    samples=(sample(real(2, 3), 0), sample(real(2, 3), real(3)), sample(integers(3), 2.5)),
)
def clamp_max(x: Any, max: Any) -> ast.expr:  # noqa: A002
    """Clamp from above at `max`."""
    return clamp(x, None, max)


@op("aten.abs.default", samples=(sample(real(2, 3)), sample(integers(3, low=-5))))
def absolute(x: Any) -> ast.expr:
    """The absolute value."""
    return magnitude(x)


@op("aten.ldexp.Tensor", samples=(sample(real(3), integers(3)),))
def ldexp(x: Any, other: Any, out: Result) -> ast.expr:
    """`x * 2 ** other`."""
    return code("{x} * 2.0 ** {other}", x=x, other=cast(other, out.dtype))


@op(
    "aten.sgn.default",
    "aten.sign.default",
    samples=(
        sample(values(-2.0, 0.0, 3.0), gradient=False, why="zero; torch gives 1 for sgn"),
        sample(integers(3, low=-2)),
        sample(truths(3)),
    ),
)
def sign(x: Any) -> ast.expr:
    """-1, 0 or 1; for a complex number its direction."""
    return code("{x}", x=x) if x.dtype == torch.bool else call("jnp.sign", x)


@op("aten.positive.default", samples=(sample(real(2, 3)),))
def positive_(x: Any) -> ast.expr:
    """The tensor itself."""
    return code("{x}", x=x)


@op(
    "aten.float_power.Tensor_Scalar",
    samples=(sample(positive(3), 1.5, gradient=False, why="float64"), sample(integers(3), 2)),
)
def float_power(x: Any, exponent: Any, out: Result) -> ast.expr:
    """`x ** exponent` with fractions (float64 in torch, float32 here)."""
    return code("{x} ** {exponent}", x=cast(x, out.dtype), exponent=exponent)
