"""Reductions of many elements to one: sums, means, extremes, norms; and running ones."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import call, code, method
from converters.graph.ops.parts import (
    accumulate,
    axes_names,
    axis_name,
    axis_of,
    cast,
    demand,
    known,
    magnitude,
    norm_of,
)
from converters.graph.ops.registry import (
    Result,
    Tensor,
    distinct,
    integers,
    op,
    positive,
    real,
    sample,
    truths,
    values,
)


def _options(x: Any, dim: Any, keepdim: bool) -> dict[str, Any]:
    """`axis=…, keepdims=True`; no axis means all axes."""
    named: dict[str, Any] = {}
    if x.ndim and dim is not None and not (isinstance(dim, list | tuple) and not dim):
        named["axis"] = axes_names(dim, x.ndim)
    return named | ({"keepdims": True} if keepdim else {})


def _plain(x: Any, dim: Any) -> bool:
    """Whether there is no axis to reduce: a number stays as it is."""
    return x.ndim == 0 and dim is not None and dim != []


def _summed(x: Any, name: str, dim: Any, keepdim: bool, out: Result) -> ast.expr:
    if _plain(x, dim):
        return code("{x}", x=cast(x, out.dtype))
    small = not (x.dtype.is_floating_point or x.dtype.is_complex)
    if (
        x.dtype != out.dtype and not (small and out.dtype == torch.int64)
    ) or x.dtype == torch.uint8:
        x = cast(x, out.dtype)
    return method(x, name, **_options(x, dim, keepdim))


_AXES = (
    sample(real(2, 3, 4), [1]),
    sample(real(2, 3, 4), [-1], True),
    sample(real(2, 3, 4), [0, 2]),
    sample(real(2, 3, 4), [-1, -2], True),
    sample(real(2, 3), None),
    sample(real(2, 3), []),
    sample(real(), [0]),
)
_INTEGERS = (
    sample(integers(2, 3), [0]),
    sample(truths(2, 3), [1]),
    sample(integers(3, dtype=torch.uint8), [0]),
)
_TYPED = (
    sample(integers(2, 3), [0], dtype=torch.float32),
    sample(
        real(2, 3, dtype=torch.bfloat16), [0], dtype=torch.float32, gradient=False, why="bfloat16"
    ),
)


@op("aten.sum.dim_IntList", samples=(*_AXES, *_INTEGERS, *_TYPED, sample(real(0, 3), [0])))
def sum_axes(
    x: Any, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Result
) -> ast.expr:
    """`x.sum(axis)`."""
    return _summed(x, "sum", dim, keepdim, out)


@op(
    "aten.sum.default",
    samples=(
        sample(real(2, 3)),
        sample(truths(2, 3)),
        sample(real(0)),
        sample(integers(3), dtype=torch.float32),
    ),
)
def sum_all(x: Any, *, dtype: torch.dtype | None = None, out: Result) -> ast.expr:
    """`x.sum()`."""
    return _summed(x, "sum", None, False, out)


@op("aten.mean.dim", samples=(*_AXES, *_TYPED, sample(real(0, 3), [0], gradient=False, why="NaN")))
def mean_axes(
    x: Any, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Result
) -> ast.expr:
    """`x.mean(axis)`."""
    return _summed(x, "mean", dim, keepdim, out)


@op("aten.mean.default", samples=(sample(real(2, 3)), sample(integers(3), dtype=torch.float32)))
def mean_all(x: Any, *, dtype: torch.dtype | None = None, out: Result) -> ast.expr:
    """`x.mean()`."""
    return _summed(x, "mean", None, False, out)


@op(
    "aten.prod.dim_int",
    samples=(
        sample(real(2, 3, 4), 1),
        sample(real(2, 3), -1, True),
        sample(integers(2, 3), 0),
        sample(truths(2, 3), 0),
    ),
)
def prod_axis(
    x: Any, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Result
) -> ast.expr:
    """`x.prod(axis)`."""
    return _summed(x, "prod", dim, keepdim, out)


@op("aten.prod.default", samples=(sample(real(2, 3)), sample(integers(3))))
def prod_all(x: Any, *, dtype: torch.dtype | None = None, out: Result) -> ast.expr:
    """`x.prod()`."""
    return _summed(x, "prod", None, False, out)


@op("aten.nansum.default", samples=(sample(values(1.0, torch.nan)), sample(real(2, 3), [1], True)))
def nansum(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Result
) -> ast.expr:
    """`jnp.nansum`."""
    return call("jnp.nansum", cast(x, out.dtype), **_options(x, dim, keepdim))


@op("aten.nanmean.default", samples=(sample(values(1.0, torch.nan)), sample(real(2, 3), [1], True)))
def nanmean(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Result
) -> ast.expr:
    """`jnp.nanmean`."""
    return call("jnp.nanmean", cast(x, out.dtype), **_options(x, dim, keepdim))


def _extreme(name: str, function: str) -> None:
    def write(x: Any, dim: Any = (), keepdim: bool = False) -> ast.expr:
        return (
            code("{x}", x=x)
            if x.ndim == 0
            else method(x, function, **_options(x, list(dim), keepdim))
        )

    write.__doc__ = f"`x.{function}(axis)`."
    cases = (
        sample(distinct(2, 3, 4), [1]),
        sample(distinct(2, 3), [-1], True),
        sample(distinct(2, 3)),
        sample(integers(2, 3), [0, 1]),
        sample(values([[1.0, torch.nan]]), [1], gradient=False, why="NaN"),
    )
    op(f"aten.{name}.default", samples=cases)(write)


_extreme("amax", "max")
_extreme("amin", "min")


def _extreme_with_place(name: str) -> None:
    def write(x: Any, dim: int, keepdim: bool = False) -> ast.expr:
        if x.ndim == 0:
            return code("({x}, jnp.zeros((), jnp.int32))", x=x)
        named = _options(x, dim, keepdim)
        if x.dtype.is_floating_point:
            return call(f"{name}_with_index", x, **named)
        return code("({a}, {b})", a=method(x, name, **named), b=method(x, f"arg{name}", **named))

    write.__doc__ = (
        f"The {name}imum along an axis and its index; `x.{name}(axis)` if only that is used."
    )
    cases = (
        sample(distinct(2, 3, 4), 1),
        sample(distinct(2, 3), -1, True),
        sample(values([[1.0, torch.nan], [2.0, 1.0]]), 1, gradient=False, why="NaN"),
        sample(distinct(), 0),
    )
    op(f"aten.{name}.dim", samples=cases)(write)

    def whole(x: Any) -> ast.expr:
        return code("{x}", x=x) if x.ndim == 0 else method(x, name)

    whole.__doc__ = f"`x.{name}()`."
    op(
        f"aten.{name}.default",
        samples=(sample(distinct(2, 3)), sample(integers(5)), sample(distinct())),
    )(whole)

    def place(x: Any, dim: int | None = None, keepdim: bool = False) -> ast.expr:
        if x.ndim == 0:
            return code("jnp.zeros((), jnp.int32)")
        return method(x, f"arg{name}", **_options(x, dim, keepdim))

    place.__doc__ = f"`x.arg{name}(axis)`."
    places = (
        sample(distinct(2, 3)),
        sample(distinct(2, 3, 4), 1),
        sample(distinct(2, 3), -1, True),
        sample(values(1, 3, 3)),
        sample(distinct(2, 3), None, True),
        sample(distinct()),
    )
    op(f"aten.arg{name}.default", samples=places)(place)


_extreme_with_place("max")
_extreme_with_place("min")


@op(
    "aten.aminmax.default",
    samples=(
        sample(distinct(2, 3)),
        sample(distinct(2, 3), dim=1),
        sample(distinct(2, 3), dim=-1, keepdim=True),
    ),
)
def aminmax(x: Any, *, dim: int | None = None, keepdim: bool = False) -> ast.expr:
    """`x.min(axis)` and `x.max(axis)`."""
    named = _options(x, dim, keepdim)
    return code("({a}, {b})", a=method(x, "min", **named), b=method(x, "max", **named))


def _truths(name: str) -> None:
    def write(x: Any, dim: Any = None, keepdim: bool = False, *, out: Result) -> ast.expr:
        named = _options(x, dim, keepdim)
        truth = x if x.dtype == torch.bool else code("{x} != 0", x=x)
        if x.ndim == 0 or (isinstance(dim, list | tuple) and not dim):
            return code("{x}", x=truth) if x.ndim == out.ndim else method(truth, name)
        return method(truth, name, **named)

    write.__doc__ = f"`x.{name}(axis)`."

    def along(x: Any, dim: int, keepdim: bool = False, *, out: Result) -> ast.expr:
        return write(x, dim, keepdim, out=out)

    along.__doc__ = write.__doc__

    def whole(x: Any, out: Result) -> ast.expr:
        return write(x, None, False, out=out)

    whole.__doc__ = write.__doc__
    cases = (
        sample(truths(2, 3), 1),
        sample(truths(2, 3), -1, True),
        sample(real(2, 3), 0),
        sample(truths(0, 3), 0),
        sample(integers(3, 2, high=2), 0),
    )
    op(f"aten.{name}.dim", samples=cases)(along)
    lists = (
        sample(truths(2, 3), [1]),
        sample(truths(2, 3, 4), [0, -1], True),
        sample(integers(2, 3, high=2), None),
    )
    op(f"aten.{name}.dims", samples=lists)(write)
    op(
        f"aten.{name}.default",
        samples=(sample(truths(2, 3)), sample(integers(3)), sample(truths(0)), sample(truths())),
    )(whole)


_truths("all")
_truths("any")


@op(
    "aten.count_nonzero.default",
    "aten.count_nonzero.dim_IntList",
    samples=(
        sample(truths(2, 3)),
        sample(integers(2, 3, high=2), [1]),
        sample(integers(2, 3, high=2), 1),
    ),
)
def count_nonzero(x: Any, dim: Any = None) -> ast.expr:
    """`jnp.count_nonzero`."""
    return call("jnp.count_nonzero", x, **_options(x, dim, False))


def _spread(name: str, function: str) -> None:
    def correction_of(x: Any, dim: Any, keepdim: bool, correction: Any) -> ast.expr:
        amount = 1 if correction is None else correction
        if isinstance(amount, float) and amount.is_integer():
            amount = int(amount)
        named = _options(x, dim, keepdim) | ({"ddof": amount} if amount else {})
        variance = method(x, "var", **named)
        return call("safe_sqrt", variance) if function == "std" else variance

    def write(
        x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> ast.expr:
        return correction_of(x, dim, keepdim, correction)

    def old(x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> ast.expr:
        return correction_of(x, dim, keepdim, int(unbiased))

    def whole(x: Any, unbiased: bool = True) -> ast.expr:
        return correction_of(x, None, False, int(unbiased))

    for function_of_kind in (write, old, whole):
        function_of_kind.__doc__ = (
            f"`x.{function}(axis, ddof=…)`; for equal elements the gradient is 0."
        )
    cases = (
        sample(real(2, 3, 4), [1]),
        sample(real(2, 3), [-1], correction=0, keepdim=True),
        sample(real(2, 3)),
        sample(real(2, 5), [1], correction=2),
    )
    op(f"aten.{name}.correction", samples=cases)(write)
    op(
        f"aten.{name}.dim",
        samples=(
            sample(real(2, 3), [1]),
            sample(real(2, 3), [1], False, True),
            sample(real(2, 3), None),
        ),
    )(old)
    op(f"aten.{name}.default", samples=(sample(real(2, 3)), sample(real(2, 3), False)))(whole)

    def both(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> ast.expr:
        mean = method(x, "mean", **_options(x, dim, keepdim))
        return code("({a}, {b})", a=correction_of(x, dim, keepdim, correction), b=mean)

    both.__doc__ = f"`x.{function}(axis, ddof=…)` and `x.mean(axis)`."
    op(f"aten.{name}_mean.correction", samples=cases)(both)


_spread("var", "var")
_spread("std", "std")


@op(
    "aten.linalg_vector_norm.default",
    samples=(
        sample(real(2, 3), 2, [-1], True),
        sample(real(2, 3)),
        sample(real(2, 3), 1, [0]),
        sample(distinct(2, 3), torch.inf, [1]),
        sample(positive(2, 3), -torch.inf),
        sample(positive(2, 3), 3, [1]),
        sample(real(2, 3), 0, [1], gradient=False, why="zero"),
        sample(real(2, 3, 4), 2, [0, 2]),
        sample(
            real(2, 3, dtype=torch.bfloat16),
            2,
            [1],
            dtype=torch.float32,
            gradient=False,
            why="bfloat16",
        ),
    ),
)
def vector_norm(
    x: Any,
    ord: Any = 2,  # noqa: A002
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> ast.expr:
    """A vector's norm."""
    if dtype is not None:
        x = cast(x, dtype)
    return norm_of(x, ord, **_options(x, dim, keepdim))


@op(
    "aten.norm.ScalarOpt_dim",
    samples=(
        sample(real(2, 3), 2, [1], True),
        sample(real(2, 3), None, [0]),
        sample(positive(2, 3), 3, [1]),
    ),
)
def norm(x: Any, p: Any, dim: Any, keepdim: bool = False) -> ast.expr:
    """A vector's norm."""
    return vector_norm(x, 2 if p is None else p, dim, keepdim)


@op("aten.norm.Scalar", samples=(sample(real(2, 3)), sample(real(2, 3), 1)))
def norm_all(x: Any, p: Any = 2) -> ast.expr:
    """A vector's norm."""
    return vector_norm(x, p)


@op(
    "aten.linalg_norm.default",
    "aten.linalg_norm.ord_str",
    samples=(
        sample(real(2, 3)),
        sample(real(2, 3), None, [1], True),
        sample(real(2, 3), 1, [0]),
        sample(real(2, 3), 1),
        sample(real(2, 3), "fro"),
    ),
)
def linalg_norm(
    x: Any,
    ord: Any = None,  # noqa: A002
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> ast.expr:
    """A vector's norm, or that of a matrix."""
    if dtype is not None:
        x = cast(x, dtype)
    if ord is None or ord == "fro":
        return vector_norm(x, 2, dim, keepdim)
    if x.ndim == 1 or isinstance(dim, int) or (dim is not None and len(dim) == 1):
        return vector_norm(x, ord, dim, keepdim)
    return matrix_norm(x, ord, (-2, -1) if dim is None else dim, keepdim)


@op(
    "aten.linalg_matrix_norm.default",
    "aten.linalg_matrix_norm.str_ord",
    samples=(
        sample(real(2, 3), "fro"),
        sample(real(2, 3, 4), torch.inf),
        sample(real(2, 3, 4), 1, [0, 2], True),
    ),
)
def matrix_norm(
    x: Any,
    ord: Any = "fro",  # noqa: A002
    dim: Any = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> ast.expr:
    """`jnp.linalg.norm` of matrices. Sums of magnitudes have torch's gradient at 0."""
    x = x if dtype is None else cast(x, dtype)
    if ord == "fro":
        return vector_norm(x, 2, dim, keepdim)
    if abs(ord) in (1, torch.inf) and not x.dtype.is_complex:
        along, across = (axis_of(axis, x.ndim) for axis in (dim if abs(ord) == 1 else dim[::-1]))
        across -= across > along and not keepdim
        rank = x.ndim if keepdim else x.ndim - 1
        kept = {"keepdims": True} if keepdim else {}
        sums = method(magnitude(x), "sum", axis=axis_name(along, x.ndim), **kept)
        return method(sums, "max" if ord > 0 else "min", axis=axis_name(across, rank), **kept)
    named = {"axis": tuple(axis_of(axis, x.ndim) for axis in dim)} | (
        {"keepdims": True} if keepdim else {}
    )
    return call("jnp.linalg.norm", x, ord=ord, **named)


@op(
    "aten.logsumexp.default",
    "aten.special_logsumexp.default",
    samples=(
        sample(real(2, 3), [1]),
        sample(real(2, 3), [-1], True),
        sample(real(2, 3, 4), [0, 2]),
    ),
)
def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> ast.expr:
    """`jax.nn.logsumexp`."""
    return call("jax.nn.logsumexp", x, **_options(x, dim, keepdim))


def _running(name: str, function: str, *samples: Any) -> None:
    def write(x: Any, dim: int, *, dtype: torch.dtype | None = None, out: Result) -> ast.expr:
        if x.ndim == 0:
            return code("{x}", x=cast(x, out.dtype))
        if x.dtype != out.dtype and not (x.dtype == torch.bool and out.dtype == torch.int64):
            x = cast(x, out.dtype)
        return accumulate(function, x, axis=axis_name(dim, x.ndim))

    write.__doc__ = f"`{function}`."
    cases = (
        sample(real(2, 3), 1),
        sample(real(2, 3), -2),
        sample(integers(5), 0),
        sample(truths(2, 3), -1),
        sample(integers(5, dtype=torch.uint8), 0),
        sample(truths(3), 0, dtype=torch.int32),
        sample(integers(3), 0, dtype=torch.float32),
    )
    op(f"aten.{name}.default", samples=cases + samples)(write)


_running("cumsum", "jnp.cumsum")
_running("cumprod", "jnp.cumprod")


@op("aten.logcumsumexp.default", samples=(sample(real(2, 3), 1), sample(real(2, 3), 0)))
def logcumsumexp(x: Any, dim: int) -> ast.expr:
    """`jax.lax.cumlogsumexp`."""
    if x.ndim == 0:
        return code("{x}", x=x)
    return accumulate("jax.lax.cumlogsumexp", x, axis=axis_of(dim, x.ndim))


def _running_extreme(name: str) -> None:
    def write(x: Any, dim: int) -> ast.expr:
        if x.ndim == 0:
            return code("({x}, jnp.zeros((), jnp.int32))", x=x)
        demand(x.dtype != torch.bool, "a running extreme of truths")
        axis = axis_of(dim, x.ndim)
        most = call(f"jax.lax.{name}", x, axis=axis)
        place = call("last_place", x, most, axis=axis)
        if x.dtype.is_floating_point:  # of equal elements, the last has the gradient
            most = call("jnp.take_along_axis", x, place, axis=axis)
        return code("({most}, {place})", most=most, place=place)

    write.__doc__ = f"`jax.lax.{name}`, and where it was."
    op(
        f"aten.{name}.default",
        samples=(
            sample(distinct(2, 5), 1),
            sample(distinct(4, 2), 0),
            sample(values(1, 3, 3, 2), 0),
        ),
    )(write)


_running_extreme("cummax")
_running_extreme("cummin")


@op(
    "aten.diff.default",
    samples=(
        sample(real(2, 5)),
        sample(real(5, 2), 1, 0),
        sample(real(2, 5), 2),
        sample(integers(2, 5), prepend=integers(2, 1)),
        sample(real(2, 5), 1, -1, real(2, 1), real(2, 2)),
        sample(truths(5)),
    ),
)
def diff(x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> ast.expr:
    """`jnp.diff`."""
    if x.dtype == torch.bool:
        demand(
            n == 1 and prepend is None and append is None and x.ndim == 1, "differences of truths"
        )
        return code("{x}[1:] ^ {x}[:-1]", x=x)
    named: dict[str, Any] = {} if n == 1 else {"n": int(n)}
    named |= {} if axis_of(dim, x.ndim) == x.ndim - 1 else {"axis": axis_name(dim, x.ndim)}
    others = {"prepend": prepend, "append": append}
    return call(
        "jnp.diff", x, **named, **{key: end for key, end in others.items() if end is not None}
    )


@op("aten.trace.default", samples=(sample(real(3, 3)), sample(integers(2, 3))))
def trace(x: Any) -> ast.expr:
    """`jnp.trace`."""
    return call("jnp.trace", x)


@op(
    "aten.histc.default",
    samples=(
        sample(real(20), 5, -1, 1, gradient=False, why="zero"),
        sample(values(0.0, 1.0, 1.0, 3.0), 4, 0, 3, gradient=False, why="zero"),
        sample(values(0.0, 1.0, 2.0, 4.0), 4, gradient=False, why="zero"),
    ),
)
def histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> ast.expr:  # noqa: A002
    """Counts of values in bins of equal width. Integers are counted only if each has its own bin."""
    if not x.dtype.is_floating_point:
        if known(min) and min == 0 and max == bins - 1:
            flat = x if x.ndim == 1 else method(x, "reshape", -1)
            return code("jax.nn.one_hot({x}, {bins}).sum(axis=0)", x=flat, bins=bins)
        x = cast(x, torch.float32)
    if known(min) and known(max) and min == max == 0:
        return call("count_in_bins", x, bins, method(x, "min"), method(x, "max"))
    return call("count_in_bins", x, bins, min, max)


@op("aten.dist.default", samples=(sample(real(2, 3), real(2, 3)), sample(real(2, 3), real(3), 1)))
def dist(x: Any, other: Any, p: Any = 2, *, out: Result) -> ast.expr:
    """The norm of a difference."""
    return vector_norm(Tensor((), out.dtype, code("{x} - {other}", x=x, other=other)), p)
