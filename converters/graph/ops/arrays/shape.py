"""Operators that keep the elements and change shape or order: reshape, transpose, join, split."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from converters.graph.expression import Hole, SettingInt, call, code, method
from converters.graph.ops.parts import at, axis_name, axis_of, cast, demand, known, part
from converters.graph.ops.registry import Result, Size, integers, op, real, sample, truths

_NEW = ast.Constant(None)


def reshaped(x: Any, sizes: Sequence[Any]) -> ast.expr:
    """`x.reshape(...)`."""
    return method(x, "reshape", *sizes) if sizes else method(x, "reshape", ())


@op(
    "aten.view.default",
    "aten.reshape.default",
    "aten._unsafe_view.default",
    "aten.view_copy.default",
    samples=(
        sample(real(2, 6), [2, -1, 3]),
        sample(real(1), []),
        sample(real(2, 0), [0]),
        sample(real(2, 3), [6]),
    ),
)
def reshape(x: Any, size: Any) -> ast.expr:
    """`x.reshape(...)`."""
    return reshaped(x, list(size))


@op("aten.view_as.default", "aten.reshape_as.default", samples=(sample(real(2, 6), real(3, 4)),))
def reshape_as(x: Any, other: Any) -> ast.expr:
    """`x.reshape(...)`."""
    return code("{x}.reshape({other}.shape)", x=x, other=other)


@op(
    "aten.flatten.using_ints",
    samples=(
        sample(real(2, 3, 4)),
        sample(real(2, 3, 4), 1),
        sample(real(2, 3, 4), -3, -2),
        sample(real(2, 3, 4, 2), 1, 2),
        sample(real()),
        sample(real(2, 0, 3), 1),
        sample(real(2, 3), 1, 1),
    ),
)
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1, *, out: Result) -> ast.expr:
    """Merge several axes into one."""
    start, end = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    if start == end and x.ndim:
        return code("{x}", x=x)
    if any(side == 0 for side in out.shape):
        return reshaped(x, out.shape)
    return reshaped(x, [*x.shape[:start], -1, *x.shape[end + 1 :]])


@op("aten.unflatten.int", samples=(sample(real(2, 6), 1, [2, 3]), sample(real(6, 2), -2, [2, -1])))
def unflatten(x: Any, dim: int, sizes: Any) -> ast.expr:
    """Split one axis into several."""
    axis = axis_of(dim, x.ndim)
    return reshaped(x, [*x.shape[:axis], *sizes, *x.shape[axis + 1 :]])


@op("aten.ravel.default", samples=(sample(real(2, 3)), sample(real())))
def ravel(x: Any) -> ast.expr:
    """`x.reshape(-1)`."""
    return reshaped(x, [-1])


def broadcast(x: Any, shape: Sequence[Any]) -> ast.expr:
    """`jnp.broadcast_to`, or the tensor itself if it already has the shape."""
    if _same_shape(x.shape, shape):
        return code("{x}", x=x)
    return call("jnp.broadcast_to", x, tuple(shape))


def _same_shape(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(shape) == len(other) and all(
        known(a) and known(b) and a == b for a, b in zip(shape, other, strict=True)
    )


@op(
    "aten.expand.default",
    "aten.broadcast_to.default",
    "aten.expand_copy.default",
    samples=(
        sample(real(2, 1), [2, 3]),
        sample(real(2, 1), [4, -1, 3]),
        sample(real(2, 3), [2, 3]),
        sample(real(2, 3), [-1, -1]),
        sample(real(), [2]),
        sample(real(1, 3), [0, 3]),
    ),
)
def expand(x: Any, size: Any, *, implicit: bool = False) -> ast.expr:
    """`jnp.broadcast_to`."""
    before = len(size) - x.ndim
    sizes = [
        x.shape[place - before] if known(side) and side == -1 else side
        for place, side in enumerate(size)
    ]
    if all(known(side) and side == -1 for side in size):
        return code("{x}", x=x)
    return broadcast(x, sizes)


@op(
    "aten.expand_as.default",
    samples=(
        sample(real(2, 1), real(2, 3)),
        sample(real(2, 3), real(2, 3)),
        sample(real(3), integers(2, 3)),
    ),
)
def expand_as(x: Any, other: Any) -> ast.expr:
    """`jnp.broadcast_to`."""
    return broadcast(x, other.shape)


@op("aten.broadcast_tensors.default", samples=(sample([real(2, 1), real(3)]),))
def broadcast_tensors(tensors: Any) -> ast.expr:
    """`jnp.broadcast_arrays`."""
    return code("jnp.broadcast_arrays({*tensors})", tensors=tensors)


@op(
    "aten.transpose.int",
    "aten.swapaxes.default",
    "aten.swapdims.default",
    "aten.transpose_copy.int",
    samples=(
        sample(real(2, 3, 4), 1, 2),
        sample(real(2, 3, 4), -1, -2),
        sample(real(2, 3, 4), 0, -1),
        sample(real(2, 3), 0, 1),
        sample(real(), 0, -1),
    ),
)
def transpose(x: Any, dim0: int, dim1: int) -> ast.expr:
    """`x.swapaxes(...)`."""
    if axis_of(dim0, x.ndim) == axis_of(dim1, x.ndim):
        return code("{x}", x=x)
    if x.ndim == 2:
        return code("{x}.T", x=x)
    if dim0 < 0 and dim1 < 0:
        return method(x, "swapaxes", int(dim0), int(dim1))
    return method(x, "swapaxes", *sorted((axis_of(dim0, x.ndim), axis_of(dim1, x.ndim))))


@op(
    "aten.permute.default",
    "aten.permute_copy.default",
    samples=(
        sample(real(2, 3, 4), [0, 2, 1]),
        sample(real(2, 3, 4), [-1, 0, 1]),
        sample(real(2, 3), [1, 0]),
        sample(real(2, 3), [0, 1]),
        sample(real(), []),
    ),
)
def permute(x: Any, dims: Any) -> ast.expr:
    """`x.transpose(...)`."""
    axes = [axis_of(dim, x.ndim) for dim in dims]
    moved = [place for place, axis in enumerate(axes) if place != axis]
    if not moved:
        return code("{x}", x=x)
    if x.ndim == 2:
        return code("{x}.T", x=x)
    if len(moved) == 2:
        return method(x, "swapaxes", *moved)
    return method(x, "transpose", *axes)


@op(
    "aten.t.default",
    "aten.numpy_T.default",
    "aten.t_copy.default",
    samples=(sample(real(2, 3)), sample(real(3))),
)
def reverse_axes(x: Any) -> ast.expr:
    """`x.T`."""
    return code("{x}.T", x=x) if x.ndim > 1 else code("{x}", x=x)


@op("aten.mT.default", samples=(sample(real(2, 3, 4)),))
def matrix_transpose(x: Any) -> ast.expr:
    """`x.mT`."""
    return code("{x}.mT", x=x)


@op(
    "aten.adjoint.default",
    "aten.mH.default",
    samples=(sample(real(2, 3, 4)), sample(real(2, 3, dtype=torch.complex64))),
)
def adjoint(x: Any) -> ast.expr:
    """The matrices transposed; complex numbers are conjugated."""
    return code("{x}.mT.conj()" if x.dtype.is_complex else "{x}.mT", x=x)


@op(
    "aten.movedim.int",
    "aten.movedim.intlist",
    "aten.moveaxis.int",
    "aten.moveaxis.intlist",
    samples=(
        sample(real(2, 3, 4), 0, 2),
        sample(real(2, 3, 4), -1, 0),
        sample(real(2, 3, 4), [0, 1], [2, 0]),
    ),
)
def movedim(x: Any, source: Any, destination: Any) -> ast.expr:
    """`jnp.moveaxis`."""
    if not isinstance(source, int):
        source, destination = tuple(source), tuple(destination)
    return call("jnp.moveaxis", x, source, destination)


@op(
    "aten.unsqueeze.default",
    "aten.unsqueeze_copy.default",
    samples=(
        sample(real(2, 3), 0),
        sample(real(2, 3), 1),
        sample(real(2, 3), -1),
        sample(real(2, 3, 4, 5), -2),
        sample(real(), 0),
        sample(real(2, 3), 2),
    ),
)
def unsqueeze(x: Any, dim: int) -> ast.expr:
    """`x[:, None]`; `writing.tidy` joins several of them."""
    axis = axis_of(dim, x.ndim + 1)
    after = x.ndim - axis
    index: list[Any] = [*[ast.Slice()] * axis, _NEW]
    if axis and (not after or 2 < axis > after):
        index = [ast.Constant(...), _NEW, *[ast.Slice()] * after]
    subscript = index[0] if len(index) == 1 else ast.Tuple(index, ast.Load())
    return ast.Subscript(code("{x}", x=x), subscript, ast.Load())


def _without(x: Any, axes: list[int], out: Result) -> ast.expr:
    gone = [axis for axis in axes if known(x.shape[axis]) and x.shape[axis] == 1]
    if len(gone) != x.ndim - out.ndim:
        gone = [axis for axis in axes if getattr(x.shape[axis], "hint", x.shape[axis]) == 1]
    demand(len(gone) == x.ndim - out.ndim, "squeeze of an axis whose size is not known")
    if not gone:
        return code("{x}", x=x)
    return method(x, "squeeze", axis_name(gone[0], x.ndim) if len(gone) == 1 else tuple(gone))


@op(
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze.default",
    "aten.squeeze_copy.dim",
    samples=(
        sample(real(2, 1, 3), 1),
        sample(real(2, 1), -1),
        sample(real(2, 3), 0),
        sample(real(1, 2, 1), [0, 2]),
        sample(real(1, 2, 3), [0, -1]),
        sample(real(1, 2, 1)),
        sample(real(), 0),
    ),
)
def squeeze(x: Any, dim: Any = None, *, out: Result) -> ast.expr:
    """`x.squeeze(axis)`, only for axes of one element."""
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return _without(x, sorted({axis_of(axis, x.ndim) for axis in dims}) if x.ndim else [], out)


@op(
    "aten.cat.default",
    "aten.concat.default",
    "aten.concatenate.default",
    samples=(
        sample([real(2, 3), real(2, 4)], 1),
        sample([real(2, 3), real(1, 3)]),
        sample([real(2, 3), real(2, 3)], -1),
        sample([integers(2), real(3)]),
        sample([real(0), real(2, 3)], 1),
        sample([truths(2), truths(3)]),
        sample([real(2, 3)], 1),
    ),
)
def cat(tensors: Any, dim: int = 0) -> ast.expr:
    """`jnp.concatenate`."""
    kept = [tensor for tensor in tensors if tensor.shape != (0,)] or list(tensors)[:1]
    if len({tensor.dtype for tensor in tensors}) > 1:
        kind = tensors[0].dtype
        for tensor in tensors[1:]:
            kind = torch.promote_types(kind, tensor.dtype)
        kept = [cast(tensor, kind) for tensor in kept]
    if len(kept) == 1:
        return code("{x}", x=kept[0])
    return call("jnp.concatenate", kept, axis=axis_name(dim, kept[0].ndim))


@op(
    "aten.stack.default",
    samples=(
        sample([real(2, 3), real(2, 3)]),
        sample([real(2, 3), real(2, 3)], 1),
        sample([real(2, 3), real(2, 3)], -1),
        sample([real(), real()]),
        sample([real(2)], 0),
    ),
)
def stack(tensors: Any, dim: int = 0) -> ast.expr:
    """`jnp.stack`."""
    axis = axis_name(dim, tensors[0].ndim + 1)
    return call(
        "jnp.stack", list(tensors), **({"axis": axis} if axis_of(dim, tensors[0].ndim + 1) else {})
    )


def _joined(name: str, function: str) -> None:
    def write(tensors: Any) -> ast.expr:
        return call(function, list(tensors))

    write.__doc__ = f"`{function}`."
    op(
        f"aten.{name}.default",
        samples=(sample([real(2, 3), real(2, 3)]), sample([real(3), real(3)])),
    )(write)


for _name in ("hstack", "vstack", "dstack", "column_stack"):
    _joined(_name, f"jnp.{_name}")
_joined("row_stack", "jnp.vstack")


@op("aten.block_diag.default", samples=(sample([real(2, 3), real(1, 2)]),))
def block_diag(tensors: Any) -> ast.expr:
    """The matrices along the diagonal of one matrix."""
    return code("jax.scipy.linalg.block_diag({*tensors})", tensors=tensors)


def _told_apart(size: Any) -> Any:
    """A key that is equal for two sizes only if they are always equal."""
    if known(size):
        return size
    return size.code.value if isinstance(size.code, Hole) else ast.dump(size.code)


def _is_setting(size: Any) -> bool:
    return isinstance(size, SettingInt) and bool(size.text)


def _split(x: Any, axis: int, out: Any) -> ast.expr:
    """Split into parts as long as the results: equal parts by their number, others by their starts."""
    if len(out) == 1:
        return code("({x},)", x=x)
    sizes = [result.shape[axis] for result in out]
    name = axis_name(axis, x.ndim)
    texts = {getattr(size, "text", "") for size in sizes}
    if len({_told_apart(size) for size in sizes}) == 1 and len(texts) == 1:
        return call("jnp.split", x, len(out), axis=name)
    begins: list[Any] = []
    total: Any = 0
    for size in sizes[:-1]:
        if known(total) and known(size) and not (_is_setting(total) or _is_setting(size)):
            total = int(total) + int(size)
        else:
            total = size if known(total) and total == 0 else code("{a} + {b}", a=total, b=size)
        begins.append(total)
    return call("jnp.split", x, begins, axis=name)


@op(
    "aten.split.Tensor",
    "aten.split_with_sizes.default",
    "aten.split.sizes",
    "aten.unsafe_split.Tensor",
    "aten.unsafe_split_with_sizes.default",
    "aten.split_copy.Tensor",
    "aten.split_with_sizes_copy.default",
    samples=(
        sample(real(2, 6), 2, 1),
        sample(real(5, 2), 2),
        sample(real(2, 6), [1, 2, 3], -1),
        sample(real(4, 3), [2, 2]),
        sample(real(2, 3), 4, 1),
    ),
)
def split(x: Any, split_size: Any, dim: int = 0, *, out: Any) -> ast.expr:
    """`jnp.split`, by the number of parts or by their starts."""
    axis = axis_of(dim, x.ndim)
    if (
        not known(split_size)
        and not isinstance(split_size, Size)
        and all(known(size) for size in split_size)
    ):
        out = [
            Result((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) for size in split_size
        ]
    return _split(x, axis, out)


@op(
    "aten.chunk.default",
    "aten.unsafe_chunk.default",
    samples=(
        sample(real(2, 6), 3, -1),
        sample(real(5, 2), 2),
        sample(real(2, 5), 3, 1),
        sample(real(5), 4),
    ),
)
def chunk(x: Any, chunks: int, dim: int = 0, *, out: Any) -> ast.expr:
    """`jnp.split`."""
    axis = axis_of(dim, x.ndim)
    if not known(x.shape[axis]):
        demand(x.shape[axis].hint % chunks == 0 and len(out) == chunks, "chunks of unequal sizes")
        return call("jnp.split", x, int(chunks), axis=axis_name(axis, x.ndim))
    return _split(x, axis, out)


@op("aten.tensor_split.sections", samples=(sample(real(2, 6), 3, -1), sample(real(5, 2), 2)))
def tensor_split(x: Any, sections: Any, dim: int = 0) -> ast.expr:
    """`jnp.array_split`."""
    return call("jnp.array_split", x, sections, axis=axis_name(dim, x.ndim))


@op("aten.tensor_split.indices", samples=(sample(real(2, 6), [1, 4], -1), sample(real(5, 2), [2])))
def tensor_split_at(x: Any, indices: Any, dim: int = 0) -> ast.expr:
    """`jnp.split` at the starts of the parts."""
    return call("jnp.split", x, list(indices), axis=axis_name(dim, x.ndim))


@op("aten.unbind.int", "aten.unbind_copy.int", samples=(sample(real(2, 3)), sample(real(2, 3), -1)))
def unbind(x: Any, dim: int = 0) -> ast.expr:
    """`jnp.unstack`."""
    axis = axis_name(dim, x.ndim)
    return call("jnp.unstack", x, axis=axis) if axis_of(dim, x.ndim) else call("jnp.unstack", x)


@op(
    "aten.repeat.default",
    "aten.tile.default",
    samples=(
        sample(real(2, 3), [2, 1]),
        sample(real(3), [2, 2]),
        sample(real(2, 3), [1, 1]),
        sample(real(), [3]),
        sample(real(2, 3), [0, 1]),
    ),
)
def repeat(x: Any, repeats: Any) -> ast.expr:
    """`jnp.tile`."""
    if len(repeats) <= x.ndim and all(known(count) and count == 1 for count in repeats):
        return code("{x}", x=x)
    return call("jnp.tile", x, tuple(repeats))


@op(
    "aten.repeat_interleave.self_int",
    samples=(
        sample(real(2, 3), 2, 1),
        sample(real(2, 3), 2),
        sample(real(2, 3), 3, -1),
        sample(real(2, 3), 2, 0, output_size=4),
    ),
)
def repeat_interleave(
    x: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None
) -> ast.expr:
    """`jnp.repeat`."""
    return (
        call("jnp.repeat", x, repeats)
        if dim is None
        else call("jnp.repeat", x, repeats, axis=axis_name(dim, x.ndim))
    )


@op(
    "aten.repeat_interleave.self_Tensor",
    samples=(sample(real(2, 2), integers(2, low=2, high=3), 0, output_size=4),),
)
def repeat_interleave_each(
    x: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None
) -> ast.expr:
    """`jnp.repeat`, with a count for each element."""
    demand(output_size is not None, "repeat_interleave by a tensor needs output_size")
    named = {} if dim is None else {"axis": axis_name(dim, x.ndim)}
    return call("jnp.repeat", x, repeats, **named, total_repeat_length=output_size)


@op(
    "aten.flip.default",
    samples=(sample(real(2, 3), [0]), sample(real(2, 3), [0, -1]), sample(real(2, 3), [])),
)
def flip(x: Any, dims: Any) -> ast.expr:
    """`jnp.flip`."""
    if not dims:
        return code("{x}", x=x)
    return call(
        "jnp.flip",
        x,
        axis=axis_name(dims[0], x.ndim)
        if len(dims) == 1
        else tuple(axis_of(axis, x.ndim) for axis in dims),
    )


@op("aten.fliplr.default", samples=(sample(real(2, 3)),))
def fliplr(x: Any) -> ast.expr:
    """`jnp.fliplr`."""
    return call("jnp.fliplr", x)


@op("aten.flipud.default", samples=(sample(real(2, 3)),))
def flipud(x: Any) -> ast.expr:
    """`jnp.flipud`."""
    return call("jnp.flipud", x)


@op(
    "aten.roll.default",
    samples=(
        sample(real(2, 3), [1], [1]),
        sample(real(4, 4), [-1, 2], [0, -1]),
        sample(real(2, 3), [2]),
    ),
)
def roll(x: Any, shifts: Any, dims: Any = ()) -> ast.expr:
    """`jnp.roll`."""
    if not dims:
        return call("jnp.roll", x, shifts[0])
    if len(dims) == 1:
        return call("jnp.roll", x, shifts[0], axis=axis_name(dims[0], x.ndim))
    return call("jnp.roll", x, tuple(shifts), axis=tuple(axis_of(dim, x.ndim) for dim in dims))


@op(
    "aten.rot90.default",
    samples=(sample(real(2, 3)), sample(real(2, 3, 4), 3, [1, 2]), sample(real(2, 3), -2)),
)
def rot90(x: Any, k: int = 1, dims: Any = (0, 1)) -> ast.expr:
    """`jnp.rot90`."""
    return call("jnp.rot90", x, int(k), axes=tuple(int(dim) for dim in dims))


@op(
    "aten.unfold.default",
    "aten.unfold_copy.default",
    samples=(
        sample(real(2, 7), 1, 3, 2),
        sample(real(6, 2), 0, 2, 2),
        sample(real(6, 2), -2, 4, 1),
    ),
)
def unfold(x: Any, dimension: int, size: Any, step: Any) -> ast.expr:
    """Sliding windows along an axis, as a new last axis."""
    demand(x.ndim > 0, "windows of a tensor without axes")
    return call("sliding_windows", x, axis_name(dimension, x.ndim), size, step)


@op(
    "aten.diagonal.default",
    "aten.diagonal_copy.default",
    samples=(sample(real(3, 4)), sample(real(2, 3, 4), 1, -2, -1), sample(real(3, 3, 2), -1)),
)
def diagonal(x: Any, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> ast.expr:
    """`jnp.diagonal`."""
    return call("jnp.diagonal", x, offset, int(dim1), int(dim2))


@op("aten.linalg_diagonal.default", samples=(sample(real(2, 3, 4)), sample(real(3, 4), offset=1)))
def linalg_diagonal(x: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> ast.expr:
    """`jnp.diagonal`."""
    return call("jnp.diagonal", x, offset, int(dim1), int(dim2))


@op("aten.diag.default", samples=(sample(real(3)), sample(real(3, 3), 1), sample(real(2), -1)))
def diag(x: Any, diagonal: Any = 0) -> ast.expr:
    """`jnp.diag`."""
    return call("jnp.diag", x) if diagonal == 0 else call("jnp.diag", x, diagonal)


@op(
    "aten.diag_embed.default",
    samples=(
        sample(real(2, 3)),
        sample(real(3), 1),
        sample(real(2, 3), -1),
        sample(real(2, 3), 0, 0, 2),
    ),
)
def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> ast.expr:
    """Vectors as the diagonals of matrices."""
    matrices = call("diagonal_matrices", x, offset) if offset else call("diagonal_matrices", x)
    axes = (axis_of(dim1, x.ndim + 1), axis_of(dim2, x.ndim + 1))
    return (
        matrices if axes == (x.ndim - 1, x.ndim) else call("jnp.moveaxis", matrices, (-2, -1), axes)
    )


@op("aten.pixel_shuffle.default", samples=(sample(real(2, 12, 2, 3), 2), sample(real(4, 2, 3), 2)))
def pixel_shuffle(x: Any, upscale_factor: Any) -> ast.expr:
    """Rearrange channels into finer pixels."""
    return call("pixel_shuffle", x, upscale_factor)


@op("aten.pixel_unshuffle.default", samples=(sample(real(2, 3, 4, 6), 2), sample(real(3, 4, 6), 2)))
def pixel_unshuffle(x: Any, downscale_factor: Any) -> ast.expr:
    """Rearrange pixels into channels."""
    return call("pixel_unshuffle", x, downscale_factor)


@op(
    "aten.channel_shuffle.default",
    "aten.native_channel_shuffle.default",
    samples=(sample(real(2, 6, 2, 3), 3),),
)
def channel_shuffle(x: Any, groups: Any) -> ast.expr:
    """Interleave the channels of the groups."""
    sides = x.shape[2:]
    return code(
        "{x}.reshape({n}, {groups}, -1, {*sides}).swapaxes(1, 2).reshape({n}, {c}, {*sides})",
        x=x,
        n=x.shape[0],
        c=x.shape[1],
        groups=groups,
        sides=sides,
    )


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _padded(x: Any, pad: Sequence[Any], mode: str, value: Any) -> ast.expr:
    sides = [(pad[place], pad[place + 1]) for place in range(0, len(pad), 2)][::-1]
    widths: list[tuple[Any, Any]] = [(0, 0)] * (x.ndim - len(sides)) + sides
    if all(known(width) and width == 0 for pair in widths for width in pair):
        return code("{x}", x=x)
    if any(known(width) and width < 0 for width in pad):
        demand(mode == "constant", f"padding by less than nothing, {mode}")
        demand(
            all(known(width) for width in pad),
            "padding by less than nothing and by sizes of inputs",
        )
        number_ = value if value else 0
        filled = code("{v}", v=int(number_) if not x.dtype.is_floating_point else float(number_))
        edges = [(int(low), int(high), 0) for low, high in widths]
        return call("jax.lax.pad", x, call("jnp.asarray", filled, x.dtype), edges)
    named: dict[str, Any] = {} if mode == "constant" else {"mode": _MODES[mode]}
    if value:
        named["constant_values"] = value
    return call("jnp.pad", x, tuple(widths), **named)


@op(
    "aten.pad.default",
    samples=(
        sample(real(2, 3), [1, 2]),
        sample(real(2, 3), [1, 0, 0, 2], "constant", 1.5),
        sample(real(2, 3, 5), [1, 2], "reflect"),
        sample(real(2, 3, 5), [1, 2], "replicate"),
        sample(real(2, 3, 5), [1, 2], "circular"),
        sample(real(1, 2, 4, 5), [1, 2, 1, 0], "reflect"),
        sample(real(2, 5), [-1, 2]),
        sample(real(2, 5), [-1, -2], "constant", 2.0),
        sample(real(2, 5), [0, 0]),
        sample(integers(2, 5), [1, 0], "constant", 3.0),
        sample(truths(2, 5), [1, 0], "constant", 1),
    ),
)
def pad(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> ast.expr:
    """`jnp.pad`; negative padding crops."""
    if value is not None and known(value):
        value = bool(value) if x.dtype == torch.bool else value
    if isinstance(value, float) and not (x.dtype.is_floating_point or x.dtype.is_complex):
        value = int(value)
    return _padded(x, pad, mode, value)


@op(
    "aten.constant_pad_nd.default",
    samples=(
        sample(real(2, 3), [1, 2]),
        sample(real(2, 3), [1, -1, 0, 2], 2),
        sample(integers(2), [1, 1], 2.0),
    ),
)
def constant_pad_nd(x: Any, pad_: Any, value: Any = 0) -> ast.expr:
    """`jnp.pad`."""
    return pad(x, pad_, "constant", value)


def _pad(mode: str, *names: str) -> None:
    def write(x: Any, padding: Any) -> ast.expr:
        return _padded(x, padding, mode, None)

    write.__doc__ = f"`jnp.pad`, {mode}."
    shapes = {1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (1, 2, 4, 5, 4)}
    for name in names:
        count = int(name[-2]) if name[-1] == "d" else 2
        case = sample(real(*shapes[count]), [1, 2, 0, 1, 2, 1][: 2 * count])
        op(f"aten.{name}.default", samples=(case,))(write)


_pad("reflect", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
_pad("replicate", "replication_pad1d", "replication_pad2d", "replication_pad3d")
_pad("circular", "_pad_circular")


@op(
    "aten.narrow.default",
    "aten.narrow_copy.default",
    samples=(
        sample(real(4, 3), 0, 1, 2),
        sample(real(4, 3), -1, 0, 2),
        sample(real(4, 3), 0, -2, 2),
    ),
)
def narrow(x: Any, dim: int, start: Any, length: Any) -> ast.expr:
    """`x[start : start + length]`."""
    if known(start) and start < 0:
        demand(known(x.shape[axis_of(dim, x.ndim)]), "narrow from the end of an axis of any size")
        start = start + x.shape[axis_of(dim, x.ndim)]
    stop = (
        start + length if known(start) and known(length) else code("{a} + {b}", a=start, b=length)
    )
    if known(start) and start == 0:
        start, stop = None, length
    return at(x, x.ndim, {dim: part(start, stop)})


def _at_least(count: int) -> None:
    def write(x: Any) -> ast.expr:
        return call(f"jnp.atleast_{count}d", x)

    write.__doc__ = f"`jnp.atleast_{count}d`."
    op(f"aten.atleast_{count}d.default", samples=(sample(real()), sample(real(3))))(write)


for _count in (1, 2, 3):
    _at_least(_count)
