"""Order of elements: sorting, the largest, the median."""

from __future__ import annotations

import ast
from typing import Any

from converters.graph.expression import call, code
from converters.graph.ops.parts import axis_name, axis_of, known
from converters.graph.ops.registry import distinct, integers, op, sample, values


def _order(x: Any, dim: int, descending: bool) -> dict[str, Any]:
    axis = {} if axis_of(dim, x.ndim) == max(x.ndim, 1) - 1 else {"axis": axis_name(dim, x.ndim)}
    return axis | ({"descending": True} if descending else {})


def _sorted(x: Any, dim: int, descending: bool) -> ast.expr:
    if x.ndim == 0:
        return code("({x}, jnp.zeros((), jnp.int32))", x=x)
    named = _order(x, dim, descending)
    return code("({a}, {b})", a=call("jnp.sort", x, **named), b=call("jnp.argsort", x, **named))


_CASES = (
    sample(distinct(2, 5)),
    sample(distinct(5, 2), dim=0),
    sample(distinct(2, 5), dim=-1, descending=True),
    sample(distinct()),
)


@op("aten.sort.default", samples=(*_CASES, sample(distinct(5, 2), 0, True)))
def sort(x: Any, dim: int = -1, descending: bool = False) -> ast.expr:
    """`jnp.sort` and `jnp.argsort`."""
    return _sorted(x, dim, descending)


@op(
    "aten.sort.stable",
    samples=(
        sample(values(3, 1, 3, 2, 1), stable=True),
        sample(values(3, 1, 3, 2, 1), stable=True, descending=True),
        sample(distinct(3, 4), stable=False, dim=0),
    ),
)
def sort_stable(
    x: Any, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> ast.expr:
    """`jnp.sort` and `jnp.argsort`, which keep the order of equal elements."""
    if descending and stable and x.ndim:
        # `jnp.sort` turns round what it sorted, and with it the order of equal elements' gradients.
        axis = axis_name(dim, x.ndim)
        order = call("jnp.argsort", x, **_order(x, dim, descending))
        ordered = call("jnp.take_along_axis", x, order, axis=axis)
        return code("({a}, {b})", a=ordered, b=order)
    return _sorted(x, dim, descending)


@op("aten.argsort.default", samples=(sample(distinct(2, 5)), sample(distinct(5, 2), 0, True)))
def argsort(x: Any, dim: int = -1, descending: bool = False) -> ast.expr:
    """`jnp.argsort`."""
    return call("jnp.argsort", x, **_order(x, dim, descending))


@op(
    "aten.argsort.stable",
    samples=(
        sample(values(3, 1, 3, 2, 1), stable=True),
        sample(distinct(5, 2), stable=True, dim=0, descending=True),
    ),
)
def argsort_stable(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> ast.expr:
    """`jnp.argsort`, which keeps the order of equal elements."""
    return call("jnp.argsort", x, **_order(x, dim, descending))


@op("aten.msort.default", samples=(sample(distinct(4, 3)),))
def msort(x: Any) -> ast.expr:
    """`jnp.sort` of the first axis."""
    return call("jnp.sort", x, axis=0)


@op(
    "aten.topk.default",
    samples=(
        sample(distinct(2, 5), 2),
        sample(distinct(5, 2), 3, 0),
        sample(distinct(2, 5), 2, -1, False),
        sample(distinct(4, 3, 2), 2, 1, False),
        sample(values(4, 1, 7, 3), 2),
    ),
)
def topk(x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> ast.expr:  # noqa: A002
    """`jax.lax.top_k`, which takes the largest along the last axis."""
    last = axis_of(dim, x.ndim) == max(x.ndim, 1) - 1
    if last and largest and x.ndim:
        return call("jax.lax.top_k", x, k)
    if x.ndim == 0:
        return code("({x}, jnp.zeros((), jnp.int32))", x=x)
    return call(
        "top_k_along", x, k, axis=axis_name(dim, x.ndim), **({} if largest else {"largest": False})
    )


@op(
    "aten.kthvalue.default", samples=(sample(distinct(2, 5), 2), sample(distinct(5, 2), 3, 0, True))
)
def kthvalue(x: Any, k: Any, dim: int = -1, keepdim: bool = False) -> ast.expr:
    """The k-th smallest element and its index."""
    if x.ndim == 0:
        return code("({x}, jnp.zeros((), jnp.int32))", x=x)
    place = int(k) - 1 if known(k) else code("{k} - 1", k=k)
    return _taken(x, place, dim, keepdim)


def _taken(x: Any, place: Any, dim: int, keepdim: bool) -> ast.expr:
    return call(
        "kth_smallest",
        x,
        place,
        axis=axis_name(dim, x.ndim),
        **({"keepdims": True} if keepdim else {}),
    )


@op("aten.median.dim", samples=(sample(distinct(2, 5), 1), sample(distinct(4, 2), 0, True)))
def median(x: Any, dim: int, keepdim: bool = False) -> ast.expr:
    """The median (the smaller of two) and its index."""
    if x.ndim == 0:
        return code("({x}, jnp.zeros((), jnp.int32))", x=x)
    side = x.shape[axis_of(dim, x.ndim)]
    place = (int(side) - 1) // 2 if known(side) else code("({s} - 1) // 2", s=side)
    return _taken(x, place, dim, keepdim)


@op(
    "aten.median.default",
    samples=(sample(distinct(2, 5)), sample(distinct(7)), sample(integers(6))),
)
def median_all(x: Any) -> ast.expr:
    """The median, the smaller of two."""
    median = code("jnp.sort({x}.reshape(-1))[({x}.size - 1) // 2]", x=x)
    if not x.dtype.is_floating_point:
        return median
    # Equal elements share the gradient.
    return code("{x}.min(where={x} >= {median}, initial=jnp.inf)", x=x, median=median)


@op(
    "aten.quantile.default",
    "aten.quantile.scalar",
    samples=(
        sample(distinct(2, 5), 0.3, 1),
        sample(distinct(2, 5), values(0.1, 0.5), 1, True),
        sample(distinct(5), 0.75),
    ),
)
def quantile(
    x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> ast.expr:
    """`jnp.quantile`."""
    named: dict[str, Any] = {} if dim is None else {"axis": axis_name(dim, x.ndim)}
    named |= {"keepdims": True} if keepdim else {}
    return call(
        "jnp.quantile",
        x,
        q,
        **named,
        **({} if interpolation == "linear" else {"method": interpolation}),
    )
