"""Conversions of dtype, and operators that return the tensor unchanged."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code
from converters.graph.ops.parts import cast, demand, same_dtype
from converters.graph.ops.registry import (
    Result,
    integers,
    op,
    positive,
    real,
    sample,
    truths,
    values,
)

_BFLOAT = torch.bfloat16


def _converted(x: Any, dtype: torch.dtype) -> ast.expr:
    if x.dtype.is_complex and not dtype.is_complex:
        x = code("{x}.real", x=x)
    return code("{x}", x=cast(x, dtype))


@op(
    "aten.to.dtype",
    samples=(
        sample(real(2, 3), _BFLOAT, gradient=False, why="bfloat16"),
        sample(values(1.5, -1.5, 0.0), torch.int64),
        sample(values(1.5, -1.5, 0.0), torch.bool),
        sample(truths(3), torch.float32),
        sample(integers(3), torch.int32),
        sample(integers(3), torch.float64),
        sample(real(3), torch.float64, gradient=False, why="float64"),
        sample(real(3), torch.complex64),
        sample(real(3, dtype=torch.complex64), torch.complex64),
    ),
)
def to_dtype(
    x: Any, dtype: Any, non_blocking: bool = False, copy: bool = False, memory_format: Any = None
) -> ast.expr:
    """`x.astype(dtype)`."""
    return _converted(x, dtype)


@op(
    "aten.to.dtype_layout",
    "aten._to_copy.default",
    samples=(
        sample(real(2, 3)),
        sample(integers(3), dtype=torch.float32),
        sample(integers(3), dtype=torch.float32, device=torch.device("cpu")),
    ),
)
def to_copy(x: Any, out: Result, dtype: torch.dtype | None = None) -> ast.expr:
    """`x.astype(dtype)`."""
    return _converted(x, out.dtype)


@op("aten.to.device", samples=(sample(integers(3), torch.device("cpu"), torch.float32),))
def to_device(
    x: Any,
    device: Any,
    dtype: Any,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: Any = None,
) -> ast.expr:
    """`x.astype(dtype)`."""
    return _converted(x, dtype)


@op(
    "aten.to.other",
    "aten.type_as.default",
    samples=(sample(integers(3), real(2)), sample(real(3), real(2))),
)
def type_as(
    x: Any, other: Any, non_blocking: bool = False, copy: bool = False, memory_format: Any = None
) -> ast.expr:
    """`x.astype` of another tensor's dtype."""
    return _converted(x, other.dtype)


@op(
    "aten.to.prim_Device",
    samples=(sample(integers(3), torch.device("cpu"), torch.float32), sample(real(3), None, None)),
)
def to_prim_device(
    x: Any,
    device: Any,
    dtype: Any = None,
    non_blocking: bool = False,
    copy: bool = False,
    *,
    out: Result,
) -> ast.expr:
    """`x.astype(dtype)`."""
    return _converted(x, out.dtype)


@op(
    "prims.convert_element_type.default",
    samples=(sample(integers(3), torch.float32), sample(real(3), torch.int64)),
)
def convert_element_type(x: Any, dtype: torch.dtype) -> ast.expr:
    """`x.astype(dtype)`."""
    return _converted(x, dtype)


@op(
    "aten.view.dtype",
    samples=(
        sample(real(3), torch.int32),
        sample(integers(3, dtype=torch.int32), torch.float32, gradient=False, why="bits"),
        sample(real(3), torch.float32),
    ),
)
def view_dtype(x: Any, dtype: torch.dtype) -> ast.expr:
    """The same bits in another dtype of the same width."""
    if same_dtype(x.dtype, dtype):
        return code("{x}", x=x)
    demand(
        x.dtype.itemsize == dtype.itemsize < 8, f"bits of {x.dtype} as {dtype}: not of one width"
    )
    return call("jax.lax.bitcast_convert_type", x, dtype)


@op(
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.alias.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
    "aten.lift.default",
    "aten.alias_copy.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
    samples=(
        sample(real(2, 3), gradient=False, why="torch has none of some"),
        sample(real(), gradient=False, why="as above"),
    ),
)
def identity(x: Any) -> ast.expr:
    """The tensor itself."""
    return code("{x}", x=x)


@op(
    "aten.detach.default",
    "aten.detach_copy.default",
    samples=(sample(real(2, 3)), sample(real())),
)
def detach(x: Any) -> ast.expr:
    """`jax.lax.stop_gradient`."""
    return call("jax.lax.stop_gradient", x)


@op(
    "aten._conj.default",
    "aten._conj_physical.default",
    samples=(sample(real(3, dtype=torch.complex64)),),
)
@op(
    "aten.conj.default",
    "aten.conj_physical.default",
    samples=(sample(real(3, dtype=torch.complex64)), sample(real(3))),
)
def conj(x: Any) -> ast.expr:
    """`jnp.conj`."""
    return call("jnp.conj", x) if x.dtype.is_complex else code("{x}", x=x)


@op(
    "aten.copy.default",
    samples=(
        sample(real(2, 3), real(2, 3), gradient=False, why="torch has none"),
        sample(real(2, 3), real(3), gradient=False, why="torch has none"),
        sample(real(2), integers(2), gradient=False, why="torch has none"),
        sample(integers(2), real(2), True),
    ),
)
def copy(x: Any, src: Any, non_blocking: bool = False, *, out: Result) -> ast.expr:
    """The other tensor, in this tensor's shape and dtype."""
    src = cast(src, x.dtype)
    if tuple(src.shape) == tuple(x.shape):
        return code("{x}", x=src)
    return call("jnp.broadcast_to", src, tuple(out.shape))


@op(
    "aten.fill.Scalar",
    "aten.fill.Tensor",
    samples=(
        sample(real(2, 3), 2),
        sample(integers(2), 2.5),
        sample(real(2, 3), real()),
        sample(integers(2), real()),
    ),
)
def fill(x: Any, value: Any) -> ast.expr:
    """`jnp.full_like`."""
    return call("jnp.full_like", x, value)


@op("aten.real.default", samples=(sample(real(3, dtype=torch.complex64)), sample(real(3))))
def real_part(x: Any) -> ast.expr:
    """`x.real`."""
    return code("{x}.real", x=x) if x.dtype.is_complex else code("{x}", x=x)


@op("aten.imag.default", samples=(sample(real(3, dtype=torch.complex64)),))
def imaginary_part(x: Any) -> ast.expr:
    """`x.imag`."""
    return code("{x}.imag", x=x)


@op(
    "aten.view_as_real.default",
    "aten.view_as_real_copy.default",
    samples=(sample(real(3, dtype=torch.complex64)),),
)
def view_as_real(x: Any) -> ast.expr:
    """The real and the imaginary part on a new last axis."""
    return code("jnp.stack([{x}.real, {x}.imag], axis=-1)", x=x)


@op(
    "aten.view_as_complex.default",
    samples=(sample(real(3, 2)),),
)
def view_as_complex(x: Any) -> ast.expr:
    """The last axis as real and imaginary part."""
    return code("jax.lax.complex({x}[..., 0], {x}[..., 1])", x=x)


@op("aten.complex.default", samples=(sample(real(2, 3), real(2, 3)), sample(real(2, 3), real(3))))
def complex_(real: Any, imag: Any) -> ast.expr:
    """A complex number from its real and imaginary parts."""
    if tuple(real.shape) == tuple(imag.shape):
        return call("jax.lax.complex", real, imag)
    return code("{real} + 1j * {imag}", real=real, imag=imag)


@op(
    "aten.polar.default",
    samples=(sample(positive(2, 3), real(2, 3)), sample(positive(2, 3), real(3))),
)
def polar(abs: Any, angle: Any) -> ast.expr:  # noqa: A002
    """A complex number from its absolute value and angle."""
    return code("{abs} * jnp.exp(1j * {angle})", abs=abs, angle=angle)


@op("aten._is_all_true.default", samples=(sample(truths(3)), sample(truths(0, 2))))
def is_all_true(x: Any) -> ast.expr:
    """Whether all elements are true."""
    return code("{x}.all()", x=x)


@op("aten._is_any_true.default", samples=(sample(truths(3)), sample(truths(0, 2))))
def is_any_true(x: Any) -> ast.expr:
    """Whether any element is true."""
    return code("{x}.any()", x=x)
