"""Parts of a tensor, read and written: slices, gather, scatter, embedding."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from converters.graph.expression import Hole, call, code, method
from converters.graph.ops.parts import at, axis_name, axis_of, cast, demand, known, part
from converters.graph.ops.registry import Tensor, integers, op, real, sample, truths, values

_END = 2**62
_NO_AXES = "an index along an axis of a tensor without axes"
_OF_TRUTHS = "sums of truths"


def _bounds(x: Any, dim: int, start: Any, end: Any, step: Any) -> ast.Slice | None:
    """The slice, or None if it is the whole axis."""
    size = x.shape[axis_of(dim, x.ndim)]
    if known(start) and start == 0:
        start = None
    if known(end) and (end >= _END or (known(size) and end >= size)):
        end = None
    if known(step) and step == 1:
        step = None
    return part(start, end, step) if (start, end, step) != (None, None, None) else None


@op(
    "aten.slice.Tensor",
    "aten.slice_copy.Tensor",
    samples=(
        sample(real(4, 5), 0, 1, 3),
        sample(real(4, 5), 1, 0, 2**63 - 1),
        sample(real(4, 5), -1, -2, 2**63 - 1),
        sample(real(4, 5), 1, 0, -1),
        sample(real(4, 5), 1, 1, 2**63 - 1, 2),
        sample(real(2, 3, 4, 5), 3, 2, 9),
        sample(real(2, 3, 4, 5), 2, None, 2),
        sample(real(4, 5)),
        sample(real(4, 5), 1, 3, 2),
        sample(real(4, 5), 1, -9, 2),
    ),
)
def slice_(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> ast.expr:
    """`x[:, start:end]`."""
    bounds = _bounds(x, dim, start, end, step)
    return code("{x}", x=x) if bounds is None else at(x, x.ndim, {dim: bounds})


def _set(x: Any, place: ast.expr, value: Any, how: str = "set") -> ast.expr:
    """`x.at[place].set(value)`, the place being a subscript of `x`."""
    assert isinstance(place, ast.Subscript)
    there = ast.Subscript(ast.Attribute(place.value, "at", ast.Load()), place.slice, ast.Load())
    return method(there, how, value)


@op(
    "aten.slice_scatter.default",
    samples=(
        sample(real(4, 5), real(2, 5), 0, 1, 3),
        sample(real(4, 5), real(4, 5), 1, 0, 2**63 - 1),
        sample(real(4, 5), real(4, 2), -1, -2),
        sample(real(4, 5), real(4, 3), 1, 0, None, 2),
        sample(real(4, 5), integers(4, 5)),
    ),
)
def slice_scatter(
    x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> ast.expr:
    """`x.at[:, start:end].set(src)`."""
    src = cast(src, x.dtype)
    bounds = _bounds(x, dim, start, end, step)
    return code("{x}", x=src) if bounds is None else _set(x, at(x, x.ndim, {dim: bounds}), src)


@op(
    "aten.select.int",
    "aten.select_copy.int",
    samples=(
        sample(real(4, 5), 0, 1),
        sample(real(4, 5), 1, -1),
        sample(real(2, 3, 4, 5), -1, 2),
        sample(real(2, 3, 4, 5), 2, 0),
    ),
)
def select(x: Any, dim: int, index: Any) -> ast.expr:
    """`x[:, index]`."""
    return at(x, x.ndim, {dim: code("{i}", i=index)})


@op(
    "aten.select_scatter.default",
    samples=(
        sample(real(4, 5), real(5), 0, 1),
        sample(real(4, 5), real(4), 1, -1),
        sample(real(2, 3, 4), real(2, 3), -1, 2),
    ),
)
def select_scatter(x: Any, src: Any, dim: int, index: Any) -> ast.expr:
    """`x.at[:, index].set(src)`."""
    return _set(x, select(x, dim, index), cast(src, x.dtype))


@op(
    "aten.diagonal_scatter.default",
    samples=(sample(real(3, 4), real(3)), sample(real(3, 4), real(3), 1)),
)
def diagonal_scatter(x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> ast.expr:
    """The tensor with another diagonal."""
    demand(x.ndim == 2 and (dim1, dim2) == (0, 1), "diagonal_scatter of more than a matrix")
    row = (
        call("jnp.arange", src.shape[0])
        if offset >= 0
        else call("jnp.arange", -offset, code("{n} + {o}", n=src.shape[0], o=-offset))
    )
    column = (
        call("jnp.arange", src.shape[0])
        if offset <= 0
        else call("jnp.arange", offset, code("{n} + {o}", n=src.shape[0], o=offset))
    )
    return code("{x}.at[{row}, {column}].set({src})", x=x, row=row, column=column, src=src)


def _masks(indices: Sequence[Any]) -> list[Any]:
    return [
        index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)
    ]


def _index(x: Any, indices: Sequence[Any]) -> ast.expr:
    """`x[a, :, b]`."""
    items = [ast.Slice() if index is None else index.code for index in indices]
    while items and isinstance(items[-1], ast.Slice):
        items.pop()
    subscript = items[0] if len(items) == 1 else ast.Tuple(items, ast.Load())
    return ast.Subscript(code("{x}", x=x), subscript, ast.Load())


@op(
    "aten.index.Tensor",
    "aten._unsafe_index.Tensor",
    samples=(
        sample(real(4, 5), [integers(3, high=4)]),
        sample(real(4, 5), [None, integers(2, 3, high=5)]),
        sample(real(4, 5), [integers(3, high=4), integers(3, low=-5, high=5)]),
        sample(real(4, 5, 6), [integers(3, 1, high=4), None, integers(2, high=6)]),
        sample(real(4, 5, 6), [None, integers(2, high=5), integers(2, 1, high=6)]),
        sample(real(4, 5), [integers(high=4)]),
        sample(real(4, 5), [integers(0, high=4)]),
    ),
)
def index(x: Any, indices: Any) -> ast.expr:
    """`x[indices]`. Beyond the end JAX takes the last element, where torch raises."""
    demand(
        not _masks(indices),
        "how many elements a mask selects depends on its values: JAX needs to know the shape",
    )
    return _index(x, indices) if any(index is not None for index in indices) else code("{x}", x=x)


@op(
    "aten.index_put.default",
    samples=(
        sample(real(4, 5), [values(0, 2)], real(2, 5)),
        sample(real(4, 5), [values(0, 2)], real()),
        sample(real(4, 5), [None, values(1, 3)], real(2)),
        sample(real(4, 5), [integers(6, high=4)], real(6, 5), True),
        sample(real(4, 5), [integers(3, high=4), integers(3, high=5)], real(3), True),
        sample(real(4, 5), [truths(4, 5)], real()),
        sample(real(4, 5), [truths(4)], real(1)),
        sample(real(4, 5), [truths(4)], real(5)),
        sample(real(4, 5), [None, truths(5)], real()),
        sample(integers(4, 5), [truths(4, 5)], values(3)),
        sample(real(3, 2), [values(True, False, True)], real(2, 2)),
    ),
)
def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> ast.expr:
    """`x.at[indices].set(values)`; for a mask, `jnp.where`."""
    values = cast(values, x.dtype)
    masks = _masks(indices)
    if not masks:
        demand(x.dtype != torch.bool or not accumulate, _OF_TRUTHS)
        return _set(x, _index(x, indices), values, "add" if accumulate else "set")
    arrays = [index for index in indices if index is not None]
    demand(len(arrays) == 1 and arrays[0].dtype == torch.bool, "a mask among other indices")
    before = next(place for place, index in enumerate(indices) if index is not None)
    after = x.ndim - before - masks[0].ndim
    mask = _spread(masks[0], after)
    rank = values.ndim
    # The axes of the mask are one axis of the values. More than one element there would have to
    # follow the mask's order.
    if rank > after and not (
        known(values.shape[rank - after - 1]) and values.shape[rank - after - 1] == 1
    ):
        demand(
            before == 0 and rank == after + 1,
            "values for each element that a mask selects, of several axes",
        )
        return call("put_where", x, masks[0], values, **({"add": True} if accumulate else {}))
    if rank > after:
        keep = [*[ast.Slice()] * (rank - after - 1), ast.Constant(0)]
        values = ast.Subscript(
            values.code, keep[0] if len(keep) == 1 else ast.Tuple(keep, ast.Load()), ast.Load()
        )
        if rank - after - 1:
            demand(False, "values of more axes than what a mask selects")
    if accumulate:
        return code("jnp.where({mask}, {x} + {values}, {x})", mask=mask, x=x, values=values)
    return call("jnp.where", mask, values, x)


@op(
    "aten._unsafe_index_put.default",
    samples=(
        sample(real(4, 5), [values(0, 2)], real(2, 5)),
        sample(real(4, 5), [None, values(1, 3)], real(2), True),
    ),
)
def unsafe_index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> ast.expr:
    """`x.at[indices].set(values)`."""
    return index_put(x, indices, values, accumulate)


def _spread(mask: Any, after: int) -> ast.expr:
    """A mask with further axes at its end."""
    if not after:
        return code("{x}", x=mask)
    if after == 1:
        return code("{x}[..., None]", x=mask)
    return code("{x}[{*places}]", x=mask, places=[ast.Constant(...), *[ast.Constant(None)] * after])


@op(
    "aten.index_select.default",
    samples=(
        sample(real(4, 5), 0, integers(3, high=4)),
        sample(real(4, 5), -1, integers(3, high=5)),
        sample(real(4, 5), 0, integers(high=4)),
    ),
)
def index_select(x: Any, dim: int, index: Any) -> ast.expr:
    """`jnp.take`. Beyond the end it gives NaN, where torch raises."""
    demand(x.ndim, _NO_AXES)
    if index.ndim == 0:
        index = code("{index}[None]", index=index)
    return call("jnp.take", x, index, axis=axis_name(dim, x.ndim))


def _indexed(name: str, how: str) -> None:
    def write(x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> ast.expr:
        demand(x.ndim, _NO_AXES)
        demand(x.dtype != torch.bool or how == "set", _OF_TRUTHS)
        scaled = source if alpha == 1 else code("{alpha} * {source}", alpha=alpha, source=source)
        return _set(x, at(x, x.ndim, {dim: index.code}), scaled, how)

    write.__doc__ = f"`x.at[:, index].{how}(source)`."
    cases = [
        sample(real(4, 5), 0, values(0, 2, 1), real(3, 5)),
        sample(real(4, 5), -1, values(4, 2), real(4, 2)),
    ]
    if name == "index_add":
        cases += [sample(real(4, 5), 0, integers(7, high=4), real(7, 5), alpha=0.5)]
        op("aten.index_add.default", samples=tuple(cases))(write)
    else:

        def plain(x: Any, dim: int, index: Any, source: Any) -> ast.expr:
            return write(x, dim, index, source)

        op(f"aten.{name}.default", samples=tuple(cases))(plain)


_indexed("index_add", "add")
_indexed("index_copy", "set")


@op(
    "aten.index_fill.int_Scalar",
    "aten.index_fill.int_Tensor",
    samples=(
        sample(real(4, 5), 0, values(0, 2), 1.5),
        sample(real(4, 5), -1, values(0, 2), real()),
        sample(integers(4, 5), 1, values(0, 2), 2),
    ),
)
def index_fill(x: Any, dim: int, index: Any, value: Any) -> ast.expr:
    """`x.at[:, index].set(value)`."""
    demand(x.ndim, _NO_AXES)
    return _set(x, at(x, x.ndim, {dim: index.code}), value)


@op("aten.take.default", samples=(sample(real(4, 5), integers(2, 3, low=-20, high=20)),))
def take(x: Any, index: Any) -> ast.expr:
    """Elements by their index in the flat tensor."""
    return code("{x}.reshape(-1)[{index}]", x=x, index=index)


def _fitting(x: Any, index: Any, dim: int) -> Any:
    """The part of a tensor that an index covers, where it has fewer elements along other axes."""
    axis = axis_of(dim, x.ndim)
    cut: dict[int, Any] = {}
    for place, (side, other) in enumerate(zip(x.shape, index.shape, strict=True)):
        if place != axis and getattr(side, "hint", side) != getattr(other, "hint", other):
            cut[place] = part(None, other)
    return at(x, x.ndim, cut) if cut else x


@op(
    "aten.gather.default",
    samples=(
        sample(real(3, 4), 1, integers(3, 2, high=4)),
        sample(real(3, 4), 0, integers(2, 4, high=3)),
        sample(real(3, 4), -1, integers(2, 5, high=4)),
        sample(real(2, 3, 4), 1, integers(1, 2, 3, high=3)),
        sample(real(), 0, values(0)),
        sample(integers(3, 4), 1, integers(3, 0)),
    ),
)
def gather(x: Any, dim: int, index: Any, sparse_grad: bool = False) -> ast.expr:
    """`jnp.take_along_axis`. Beyond the end it gives NaN, where torch raises."""
    if x.ndim == 0 or index.ndim == 0:
        demand(x.ndim == index.ndim == 0, "gather of a tensor without axes by one with axes")
        return code("{x}", x=x)
    return call("jnp.take_along_axis", _fitting(x, index, dim), index, axis=axis_name(dim, x.ndim))


@op(
    "aten.take_along_dim.default",
    samples=(
        sample(real(3, 4), integers(3, 2, high=4), 1),
        sample(real(3, 4), integers(1, 4, high=3), 0),
        sample(real(3, 4), integers(2, 3, high=12)),
    ),
)
def take_along_dim(x: Any, indices: Any, dim: int | None = None) -> ast.expr:
    """`jnp.take_along_axis`."""
    if dim is None:
        return code("{x}.reshape(-1)[{i}.reshape(-1)]", x=x, i=indices)
    return call("jnp.take_along_axis", x, indices, axis=axis_name(dim, x.ndim))


def _scatter(x: Any, dim: int, index: Any, value: Any, how: str = "set") -> ast.expr:
    demand(x.ndim > 0 and index.ndim > 0, "scatter of a tensor without axes")
    demand(x.dtype != torch.bool or how == "set", "sums and products of truths")
    if isinstance(value, Tensor):
        cut = [
            getattr(side, "hint", side) != getattr(other, "hint", other)
            for side, other in zip(value.shape, index.shape, strict=True)
        ]
        if any(cut):
            sides = {
                place: part(None, index.shape[place]) for place, is_cut in enumerate(cut) if is_cut
            }
            value = at(value, value.ndim, sides)
    axis = axis_of(dim, x.ndim)
    pairs = zip(x.shape, index.shape, strict=True)
    if how == "set" and all(place == axis or _same(*pair) for place, pair in enumerate(pairs)):
        return call(
            "jnp.put_along_axis", x, index, value, axis=axis_name(dim, x.ndim), inplace=False
        )
    return call(
        "scatter",
        x,
        index,
        value,
        axis=axis_name(dim, x.ndim),
        **({} if how == "set" else {"how": how}),
    )


def _same(side: Any, other: Any) -> bool:
    """Whether two sides are equal for all inputs."""
    if known(side) or known(other):
        return bool(known(side) and known(other) and side == other)
    first, second = side.code, other.code
    return isinstance(first, Hole) and isinstance(second, Hole) and first.value == second.value


_ROWS = values([[0, 2, 1, 0], [1, 0, 2, 2]])


@op(
    "aten.scatter.src",
    "aten.scatter.value",
    samples=(
        sample(real(3, 4), 0, _ROWS, real(2, 4)),
        sample(real(3, 4), 0, _ROWS, real(3, 5), gradient=False, why="torch fails"),
        sample(real(3, 4), 0, _ROWS, 1.5),
        sample(real(2, 4), -1, values([[0, 3], [2, 1]]), real(2, 2)),
        sample(truths(3, 4), 0, _ROWS, True),
        sample(integers(3, 4), 0, _ROWS, 1.0),
        sample(real(3, 4), 0, values([[0, 2]]), 2),
    ),
)
def scatter(x: Any, dim: int, index: Any, src: Any) -> ast.expr:
    """Write values at the indices. If two values share an index, which one stays is undefined."""
    if not isinstance(src, Tensor) and not x.dtype.is_floating_point and not x.dtype.is_complex:
        src = bool(src) if x.dtype == torch.bool else int(src)
    return _scatter(x, dim, index, src)


@op(
    "aten.scatter_add.default",
    samples=(
        sample(real(3, 4), 0, integers(5, 4, high=3), real(5, 4)),
        sample(
            real(3, 4), 1, integers(2, 6, high=4), real(3, 7), gradient=False, why="torch fails"
        ),
    ),
)
def scatter_add(x: Any, dim: int, index: Any, src: Any) -> ast.expr:
    """Add values at the indices."""
    return _scatter(x, dim, index, src, "add")


@op(
    "aten.scatter.reduce",
    "aten.scatter.value_reduce",
    samples=(
        sample(
            real(3, 4), 0, _ROWS, real(2, 4), reduce="add", gradient=False, why="torch has none"
        ),
        sample(
            real(3, 4),
            0,
            _ROWS,
            real(2, 4),
            reduce="multiply",
            gradient=False,
            why="torch has none",
        ),
        sample(real(3, 4), 0, _ROWS, 2.0, reduce="add", gradient=False, why="torch has none"),
    ),
)
def scatter_with(x: Any, dim: int, index: Any, src: Any, reduce: str) -> ast.expr:
    """Add or multiply values at the indices."""
    return _scatter(x, dim, index, src, reduce)


@op(
    "aten.scatter_reduce.two",
    samples=tuple(
        sample(
            real(3, 4),
            0,
            integers(5, 4, high=3),
            real(5, 4),
            reduce,
            include_self=include,
            gradient=reduce != "prod",
            why="JAX has no gradient of products that meet",
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    ),
)
def scatter_reduce(
    x: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> ast.expr:
    """Combine values at the indices."""
    demand(x.ndim > 0, "scatter of a tensor without axes")
    demand(x.dtype.is_floating_point or reduce != "mean", "the mean of integers")
    demand(x.dtype != torch.bool or reduce != "sum", _OF_TRUTHS)
    axis = axis_name(dim, x.ndim)
    src_ = _fitting(src, index, 0) if src.ndim else src
    if getattr(src.shape[0], "hint", src.shape[0]) != getattr(
        index.shape[0], "hint", index.shape[0]
    ):
        src_ = at(src_, src.ndim, {0: part(None, index.shape[0])})
    return call(
        "scatter_reduce",
        x,
        index,
        src_,
        reduce,
        axis=axis,
        **({} if include_self else {"include_self": False}),
    )


@op(
    "aten.masked_scatter.default",
    samples=(
        sample(real(3, 4), truths(3, 4), real(20)),
        sample(real(3, 4), truths(3, 1), real(3, 4)),
        sample(integers(3, 4), truths(4), integers(12)),
    ),
)
def masked_scatter(x: Any, mask: Any, source: Any) -> ast.expr:
    """The elements of a source, in order, where a mask is true."""
    return call("masked_scatter", x, mask, source)


@op(
    "aten.put.default",
    samples=(
        sample(real(3, 4), values(0, 5, 7), real(3)),
        sample(real(3, 4), integers(5, high=12), real(5), True),
        sample(real(3, 4), integers(2, 3, high=12), real(6), True),
        sample(real(), integers(high=1), real(1)),
    ),
)
def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> ast.expr:
    """Write elements by their index in the flat tensor."""
    demand(x.dtype != torch.bool or not accumulate, _OF_TRUTHS)
    if index.ndim != 1:
        index = code("{index}.reshape(-1)", index=index)
    if source.ndim != 1:
        source = code("{source}.reshape(-1)", source=source)
    return code(
        "{x}.reshape(-1).at[{index}].add({source}).reshape({x}.shape)"
        if accumulate
        else "{x}.reshape(-1).at[{index}].set({source}).reshape({x}.shape)",
        x=x,
        index=index,
        source=source,
    )


@op(
    "aten.embedding.default",
    samples=(
        sample(real(5, 3), integers(2, 4, high=5)),
        sample(real(5, 3), integers(2, 4, high=5), 1),
        sample(real(5, 3), integers(high=5)),
    ),
)
def embedding(
    weight: Any,
    indices: Any,
    padding_idx: Any = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ast.expr:
    """Rows of a table. An id beyond it gives NaN, where torch raises.

    The row `padding_idx` has no gradient.
    """
    rows = call("jnp.take", weight, indices, axis=0)
    if not isinstance(padding_idx, int) or padding_idx < 0:
        return rows
    return code(
        "jnp.where(({ids} == {padding})[..., None], jax.lax.stop_gradient({rows}), {rows})",
        ids=indices,
        padding=padding_idx,
        rows=rows,
    )


@op(
    "aten.searchsorted.Tensor",
    samples=(
        sample(values(0.0, 1.0, 2.0), real(2, 3)),
        sample(values(0.0, 1.0, 2.0), values(0.0, 1.5, 2.0, 3.0), right=True),
        sample(values([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]), real(2, 4)),
        sample(values(1, 3, 5), integers(4), side="right"),
    ),
)
def searchsorted(
    sorted_sequence: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> ast.expr:
    """Insertion positions of values in sorted values."""
    demand(sorter is None, "searchsorted with a sorter")
    named = {"side": "right"} if right or side == "right" else {}
    if sorted_sequence.ndim == 1:
        return call("jnp.searchsorted", sorted_sequence, x, **named)
    return call("search_rows", sorted_sequence, x, **named)


@op(
    "aten.searchsorted.Scalar",
    samples=(sample(values(0.0, 1.0, 2.0), 1.0), sample(values(1, 3), 3, right=True)),
)
def searchsorted_number(
    sorted_sequence: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> ast.expr:
    """Insertion position of a number in sorted values."""
    return searchsorted(sorted_sequence, x, out_int32, right, side, sorter)


@op(
    "aten.bucketize.Tensor",
    samples=(
        sample(real(2, 3), values(-1.0, 0.0, 1.0)),
        sample(integers(4), values(1, 3, 5), right=True),
        sample(integers(4), values(1, 3, 5)),
        sample(integers(4), values(1.5, 3.0)),
    ),
)
def bucketize(x: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> ast.expr:
    """`jnp.searchsorted`: the bucket of each value."""
    return call("jnp.searchsorted", boundaries, x, **({"side": "right"} if right else {}))


@op("aten.bucketize.Scalar", samples=(sample(0.5, values(-1.0, 0.0, 1.0)),))
def bucketize_number(
    x: Any, boundaries: Any, out_int32: bool = False, right: bool = False
) -> ast.expr:
    """`jnp.searchsorted`."""
    return call("jnp.searchsorted", boundaries, x, **({"side": "right"} if right else {}))
