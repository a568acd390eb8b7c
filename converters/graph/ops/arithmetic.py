"""Element by element: arithmetic."""

from __future__ import annotations

import ast
from typing import Any

from converters.graph.expression import call, code
from converters.graph.ops.registry import op, positive, real, sample


def _scaled(other: Any, alpha: Any) -> Any:
    return other if alpha == 1 else code("{alpha} * {other}", alpha=alpha, other=other)


@op(
    "aten.add.Tensor",
    "aten.add.Scalar",
    samples=(sample(real(2, 3), real(3)), sample(real(2, 3), 2, alpha=3)),
)
def add(x: Any, other: Any, alpha: Any = 1) -> ast.expr:
    """`x + alpha * other`."""
    return code("{x} + {other}", x=x, other=_scaled(other, alpha))


@op(
    "aten.sub.Tensor",
    "aten.sub.Scalar",
    samples=(sample(real(2, 3), real(2, 1)), sample(real(2, 3), real(3), alpha=0.5)),
)
def sub(x: Any, other: Any, alpha: Any = 1) -> ast.expr:
    """`x - alpha * other`."""
    return code("{x} - {other}", x=x, other=_scaled(other, alpha))


@op("aten.mul.Tensor", "aten.mul.Scalar", samples=(sample(real(2, 3), real(3)),))
def mul(x: Any, other: Any) -> ast.expr:
    """`x * other`."""
    return code("{x} * {other}", x=x, other=other)


@op("aten.rsqrt.default", samples=(sample(positive(2, 3)),))
def rsqrt(x: Any) -> ast.expr:
    """`1 / sqrt(x)`."""
    return call("jax.lax.rsqrt", x)
