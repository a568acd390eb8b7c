"""Elementwise functions of one number."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code
from converters.graph.ops.parts import cast, inexact
from converters.graph.ops.registry import (
    Result,
    Sample,
    integers,
    op,
    positive,
    real,
    sample,
    values,
    within,
)

_REAL = (sample(real(2, 3)), sample(integers(3)), sample(real(0, 3)), sample(real()))
_POSITIVE = (sample(positive(2, 3)), sample(integers(3, low=1)))
_INSIDE = (sample(within(-0.9, 0.9, 2, 3)),)


def _function(*names: str, function: str, samples: tuple[Sample, ...]) -> None:
    """Register an operator that is one call in JAX. Integers become real as in torch."""

    def write(x: Any, out: Result) -> ast.expr:
        return call(function, inexact(x, out))

    write.__doc__ = f"`{function}`."
    op(*(f"aten.{name}.default" for name in names), samples=samples)(write)


_function("sin", function="jnp.sin", samples=_REAL)
_function("cos", function="jnp.cos", samples=_REAL)
_function("tan", function="jnp.tan", samples=_INSIDE)
_function("tanh", function="jnp.tanh", samples=_REAL)
_function("sinh", function="jnp.sinh", samples=_INSIDE)
_function("cosh", function="jnp.cosh", samples=_INSIDE)
_function("asin", "arcsin", function="jnp.arcsin", samples=_INSIDE)
_function("acos", "arccos", function="jnp.arccos", samples=_INSIDE)
_function("atan", "arctan", function="jnp.arctan", samples=_REAL)
_function("asinh", "arcsinh", function="jnp.arcsinh", samples=_INSIDE)
_function("acosh", "arccosh", function="jnp.arccosh", samples=(sample(within(1.5, 3, 2, 3)),))
_function("atanh", "arctanh", function="jnp.arctanh", samples=_INSIDE)
_function("exp", function="jnp.exp", samples=_REAL[:1] + _REAL[2:])
_function("exp2", "special_exp2", function="jnp.exp2", samples=_REAL)
_function("expm1", "special_expm1", function="jnp.expm1", samples=_INSIDE)
_function("log", function="jnp.log", samples=_POSITIVE)
_function("log2", function="jnp.log2", samples=_POSITIVE)
_function("log10", function="jnp.log10", samples=_POSITIVE)
_function("log1p", "special_log1p", function="jnp.log1p", samples=_POSITIVE)
_function("sqrt", function="jnp.sqrt", samples=_POSITIVE)
_function("erf", "special_erf", function="jax.lax.erf", samples=_REAL)
_function("erfc", "special_erfc", function="jax.lax.erfc", samples=_REAL)
_function("erfinv", "special_erfinv", function="jax.lax.erf_inv", samples=_INSIDE)
_function("lgamma", "special_gammaln", function="jax.lax.lgamma", samples=_POSITIVE)
_function("digamma", "special_psi", function="jax.lax.digamma", samples=_POSITIVE)
_function("sinc", "special_sinc", function="jnp.sinc", samples=_REAL[:1])
_function("i0", function="jnp.i0", samples=(sample(real(2, 3), tolerance=1e-5),))
_function("rad2deg", function="jnp.rad2deg", samples=_REAL)
_function("deg2rad", function="jnp.deg2rad", samples=_REAL)
_function("special_ndtr", function="jax.scipy.special.ndtr", samples=_REAL[:1])
_function("special_log_ndtr", function="jax.scipy.special.log_ndtr", samples=_REAL[:1])
_function(
    "special_ndtri",
    function="jax.scipy.special.ndtri",
    samples=(sample(within(0.1, 0.9, 5), tolerance=1e-5),),
)
_function("special_i0e", function="jax.scipy.special.i0e", samples=_REAL[:1])
_function("special_i1", function="jax.scipy.special.i1", samples=_REAL[:1])
_function("special_i1e", function="jax.scipy.special.i1e", samples=_REAL[:1])
_function("special_entr", function="jax.scipy.special.entr", samples=_POSITIVE[:1])


@op(
    "aten.logit.default",
    "aten.special_logit.default",
    samples=(
        sample(within(0.1, 0.9, 2, 3)),
        sample(values(0.0, 0.3, 1.0), 0.1),
        sample(values(0, 1), 0.1),
    ),
)
def logit(x: Any, eps: float | None = None, *, out: Result) -> ast.expr:
    """`log(x / (1 - x))`."""
    x = inexact(x, out)
    if eps is not None:
        x = call("clamp", x, eps, code("1 - {eps}", eps=eps))
    return call("jax.scipy.special.logit", x)


@op("aten.angle.default", samples=(sample(values(-1.0, 0.0, 2.0)),))
def angle(x: Any) -> ast.expr:
    """`jnp.angle`, which has no gradient by a real number; JAX gives NaN at 0."""
    fixed = x if x.dtype.is_complex else call("jax.lax.stop_gradient", x)
    return call("jnp.angle", fixed)


def _test(name: str, function: str) -> None:
    def write(x: Any) -> ast.expr:
        return call(function, x)

    write.__doc__ = f"`{function}`."
    odd = values(1.0, -0.0, torch.nan, torch.inf, -torch.inf)
    op(f"aten.{name}.default", samples=(sample(odd), sample(integers(3, low=-2))))(write)


_test("isnan", "jnp.isnan")
_test("isinf", "jnp.isinf")
_test("isfinite", "jnp.isfinite")
_test("isposinf", "jnp.isposinf")
_test("isneginf", "jnp.isneginf")


@op("aten.signbit.default", samples=(sample(values(1.0, -0.0, -3.0)), sample(integers(3, low=-4))))
def signbit(x: Any) -> ast.expr:
    """Whether the sign bit is set."""
    if x.dtype.is_floating_point:
        return call("jnp.signbit", x)
    if x.dtype == torch.bool:
        return call("jnp.zeros_like", x)
    return code("{x} < 0", x=x)


@op("aten.polygamma.default", samples=(sample(1, positive(3), tolerance=1e-5),))
def polygamma(n: int, x: Any, out: Result) -> ast.expr:
    """The n-th derivative of digamma."""
    return call("jax.scipy.special.polygamma", n, cast(x, out.dtype))
