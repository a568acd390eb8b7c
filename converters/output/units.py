"""Ranges of a leaf's bytes, each read from its own tensor, in slabs of bounded size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.pytree import PytreeLeaf, Sliceable, Unit
from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.checkpoint.source import Window
from converters.layers.join import Alone, Concat, Join, Stack
from converters.layers.layout import Chain, Layout, Merge, Split, chain
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.output.joined import Joined
from converters.remote.window import FarWindow

Array = np.ndarray[Any, Any]
Box = tuple[slice, ...]

SLAB_BYTES = 16 << 20
# A slab of a transposed matrix has at least this number of rows (columns of the tensor), so that
# each read of a tensor row covers a few cache lines.
_SLAB_ROWS = 256
_SLAB_LIMIT = 64 << 20


def leaves_of(
    planned: Sequence[PlannedLeaf], checkpoint: Checkpoint, *, cast: bool = False
) -> list[PytreeLeaf]:
    """Return the leaves of a plan, to be written piece by piece from a checkpoint.

    Args:
        planned: the plan's leaves.
        checkpoint: the checkpoint with their tensors.
        cast: whether to cast tensors of another dtype to the leaf's.
    """
    return [
        PytreeLeaf(
            leaf.path,
            leaf.info,
            partial(_read_whole, leaf, checkpoint, cast),
            units=partial(planned_units, leaf, checkpoint),
            open=partial(Joined, leaf, checkpoint),
            parts=partial(Joined, leaf, checkpoint),
            is_separable=_Separable(leaf, checkpoint),
            overreads=partial(_overreads, leaf, checkpoint),
            release=partial(_release, checkpoint, [piece.key for piece in leaf.pieces]),
            prepare=partial(_prepare, checkpoint, [piece.key for piece in leaf.pieces]),
            cast=cast,
        )
        for leaf in planned
    ]


def units_of(leaf: PytreeLeaf) -> tuple[Unit, ...]:
    """Return the ranges of a leaf, in order."""
    if leaf.units is None:
        return (Unit(0, leaf.info.shape, leaf.read, _nothing),)
    return leaf.units()


def part_of(leaf: PytreeLeaf, box: Box, name: str) -> PytreeLeaf:
    """Return a part of a leaf as a separate leaf with this name; each slice of the box has both ends."""
    info = TensorInfo(tuple(cut.stop - cut.start for cut in box), leaf.info.dtype)

    def read() -> Array:
        return np.asarray((leaf.open or leaf.read)()[box])

    def units() -> tuple[Unit, ...]:
        if leaf.is_separable is not None and leaf.is_separable(box):
            part = _LeafPart(leaf, box)
            return (Unit(0, info.shape, part.read, _nothing, part.prepare),)
        return (Unit(0, info.shape, read, leaf.release or _nothing, leaf.prepare),)

    def overreads(inner: Box) -> bool:
        assert leaf.overreads is not None
        cuts = zip(box, inner, strict=True)
        return leaf.overreads(tuple(slice(b.start + c.start, b.start + c.stop) for b, c in cuts))

    return PytreeLeaf(
        name,
        info,
        read,
        units,
        overreads=None if leaf.overreads is None else overreads,
        cast=leaf.cast,
    )


class _LeafPart:
    """Part of a leaf that is read separately, once."""

    def __init__(self, leaf: PytreeLeaf, box: Box) -> None:
        self._leaf = leaf
        self._box = box
        self._opened: Sliceable | None = None

    def prepare(self) -> None:
        """Begin to read the part."""
        assert self._leaf.parts is not None
        self._opened = self._leaf.parts([self._box])

    def read(self) -> Array:
        """Return the part."""
        if self._opened is None:
            self.prepare()
        opened, self._opened = self._opened, None
        assert opened is not None
        return np.asarray(opened[self._box])


def planned_units(leaf: PlannedLeaf, checkpoint: Checkpoint) -> tuple[Unit, ...]:
    """Return the ranges of a planned leaf: one per piece if the pieces are contiguous."""
    release = partial(_release, checkpoint)
    if not _is_contiguous(leaf.join):
        opened = partial(Joined, leaf, checkpoint)
        keys = [piece.key for piece in leaf.pieces]
        prepare = partial(_prepare, checkpoint, keys)
        return (Unit(0, leaf.info.shape, opened, partial(release, keys), prepare),)
    units = []
    start = 0
    itemsize = leaf.info.nbytes // leaf.info.size if leaf.info.size else 1
    for piece in leaf.pieces:
        apart = Piece(piece.key, _without_last_reshapes(piece.layout), piece.part)
        shape = apart.shape(checkpoint.infos[piece.key].shape)
        read = partial(_take, apart, checkpoint)
        prepare = partial(_prepare, checkpoint, [piece.key])
        units.append(Unit(start, shape, read, partial(release, [piece.key]), prepare))
        start += math.prod(shape) * itemsize
    return tuple(units)


def boxes(
    shape: tuple[int, ...], itemsize: int, *, contiguous: bool, large: bool = False
) -> Iterator[tuple[int, Box]]:
    """Yield the slabs of an array, each a range of its bytes: first byte and box, in order.

    Args:
        shape: the shape of the array.
        itemsize: the size of its elements.
        contiguous: whether a slab is a contiguous range of the source, too.
        large: whether non-contiguous slabs should have the maximum size.
    """
    if 0 in shape:
        return
    row, axis = itemsize, len(shape)  # bytes per index of the axis that is cut
    while axis and row * shape[axis - 1] <= SLAB_BYTES:
        axis -= 1
        row *= shape[axis]
    if axis == 0:
        yield 0, tuple(slice(0, side) for side in shape)
        return
    axis -= 1
    rows = max(1, SLAB_BYTES // row)
    if not contiguous:
        most = max(1, _SLAB_LIMIT // row)
        rows = most if large else max(rows, min(_SLAB_ROWS, most))
    rest = tuple(slice(0, side) for side in shape[axis + 1 :])
    stretch = row * shape[axis]
    for number, outer in enumerate(itertools.product(*map(range, shape[:axis]))):
        before = tuple(slice(place, place + 1) for place in outer)
        for first in range(0, shape[axis], rows):
            cut = slice(first, min(first + rows, shape[axis]))
            yield number * stretch + first * row, (*before, cut, *rest)


def _nothing() -> None:
    pass


def _release(checkpoint: Checkpoint, keys: Sequence[str]) -> None:
    for key in keys:
        checkpoint.release(key)


def _prepare(checkpoint: Checkpoint, keys: Sequence[str]) -> None:
    for key in keys:
        checkpoint.prepare(key)


class _Separable:
    """Whether parts of a leaf can be read separately, each at no extra cost."""

    def __init__(self, leaf: PlannedLeaf, checkpoint: Checkpoint) -> None:
        self._leaf = leaf
        self._checkpoint = checkpoint
        self._copied = False  # arranging it takes a copy, and so for every other part

    def __call__(self, box: Box) -> bool:
        if self._copied:
            return False
        joined = Joined(self._leaf, self._checkpoint, [box], begin=False)
        self._copied = joined.copied
        return joined.is_separable


def _overreads(leaf: PlannedLeaf, checkpoint: Checkpoint, box: Box) -> bool:
    return Joined(leaf, _Shapes(checkpoint), [box], begin=False).overreads


class _Shapes(Checkpoint):
    """Checkpoint with windows as for remote tensors with contiguous elements; nothing is read."""

    def __init__(self, inner: Checkpoint) -> None:
        self.source = inner.source
        self.infos = inner.infos

    def read(self, key: str) -> Array:
        """Never called."""
        raise NotImplementedError

    def window(self, key: str) -> Window | None:
        """Return a window of the tensor that will not be filled."""
        info = self.infos[key]
        dtype = numpy_dtype(info.dtype, key)
        return FarWindow(lambda start, into: [], 0, dtype, info.shape, None) if info.size else None


def _take(piece: Piece, checkpoint: Checkpoint) -> Array:
    return piece.take(checkpoint.read(piece.key))


def _read_whole(leaf: PlannedLeaf, checkpoint: Checkpoint, cast: bool) -> Array:
    array = leaf.read(checkpoint.read)
    if cast and array.dtype.name != leaf.info.dtype:
        from converters.checkpoint.dtypes import numpy_dtype

        return array.astype(numpy_dtype(leaf.info.dtype, leaf.path))
    return array


def _is_contiguous(join: Join) -> bool:
    return isinstance(join, Alone) or (isinstance(join, Stack | Concat) and join.axis == 0)


def _without_last_reshapes(layout: Layout) -> Layout:
    """Return the layout up to the last step that moves elements: later steps only rename the axes."""
    steps = list(layout.layouts) if isinstance(layout, Chain) else [layout]
    while steps and isinstance(steps[-1], Merge | Split):
        steps.pop()
    return chain(steps)
