"""Parts of an array that joins several tensors, without the whole array in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.reader import Checkpoint
from converters.checkpoint.source import Window
from converters.layers.join import Alone, Concat, Stack, Sum
from converters.mapping.leaves import PlannedLeaf

Array = np.ndarray[Any, Any]
Box = tuple[slice, ...]

# A tensor is read completely if its parts cost nearly as much: other readers share it.
_WORTH_PARTS = 0.9
_LITTLE_MORE = 1.05


class Joined:
    """Planned leaf as an array whose parts are made on demand.

    An unknown kind of join is made completely, once.

    Args:
        leaf: the planned leaf.
        checkpoint: the checkpoint with its tensors.
        boxes: the parts that will be requested, which limit the reads of a remote file; None for
            any part, with tensors read completely.
        begin: whether to begin reading the data of the boxes.

    Attributes:
        shape: the shape of the leaf.
        dtype: the dtype of the data.
        copied: whether a tensor can only be arranged by a copy, and so cannot be read in parts.
    """

    def __init__(
        self,
        leaf: PlannedLeaf,
        checkpoint: Checkpoint,
        boxes: Sequence[Box] | None = None,
        *,
        begin: bool = True,
    ) -> None:
        self._leaf = leaf
        self._join = leaf.join
        self._checkpoint = checkpoint
        infos = [checkpoint.infos[piece.key] for piece in leaf.pieces]
        self._shapes = [
            piece.shape(info.shape) for piece, info in zip(leaf.pieces, infos, strict=True)
        ]
        self.shape = leaf.join.shape(self._shapes)
        self._pieces: dict[int, Array] = {}
        self._windows: dict[int, Window] = {}
        self._read = self._shown = 0  # bytes
        self.copied = False
        if boxes is None:
            for index in range(len(leaf.pieces)):
                self._piece(index)
            self.dtype = self._pieces[0].dtype
        else:
            self.dtype = numpy_dtype(infos[0].dtype, leaf.path)
            self._plan(boxes, begin)

    @property
    def is_separable(self) -> bool:
        """Whether a tensor is read only in part, with little that other parts need too."""
        return len(self._windows) > 0 and not self.overreads

    @property
    def overreads(self) -> bool:
        """Whether much more is read than the boxes contain."""
        return self._read > _LITTLE_MORE * self._shown

    def __getitem__(self, box: Box) -> Array:
        """Return the part in this box: one non-empty slice with both ends per axis."""
        cuts = self._pieces_of(box)
        if cuts is None:
            return self._whole[box]
        views = []
        for index, cut in cuts:
            view = self._piece(index)[cut]
            if index in self._windows:
                self._windows[index].fill(view)
            views.append(view)
        return views[0] if isinstance(self._join, Alone) else self._join.apply(views)

    def _pieces_of(self, box: Box) -> list[tuple[int, Box]] | None:
        """Return the pieces of a box, and the part of each; None for all parts of all pieces."""
        join = self._join
        if isinstance(join, Alone | Sum):
            return [(index, box) for index in range(len(self._shapes))]
        if isinstance(join, Stack):
            rest = (*box[: join.axis], *box[join.axis + 1 :])
            return [(index, rest) for index in range(len(self._shapes))[box[join.axis]]]
        if isinstance(join, Concat):
            return list(self._overlapping(box, join.axis))
        return None

    def _overlapping(self, box: Box, axis: int) -> Iterator[tuple[int, Box]]:
        begin = 0
        for index, shape in enumerate(self._shapes):
            end = begin + shape[axis]
            first, last = max(box[axis].start, begin), min(box[axis].stop, end)
            if first < last:
                cut = slice(first - begin, last - begin)
                yield index, (*box[:axis], cut, *box[axis + 1 :])
            begin = end

    def _plan(self, boxes: Sequence[Box], begin: bool) -> None:
        wanted: dict[int, list[Box]] = {}
        for box in boxes:
            cuts = self._pieces_of(box)
            for index, cut in (
                [(at, ()) for at in range(len(self._shapes))] if cuts is None else cuts
            ):
                wanted.setdefault(index, []).append(cut)
        for index, parts in wanted.items():
            piece = self._leaf.pieces[index]
            info = self._checkpoint.infos[piece.key]
            self._shown += self._size(index, parts) * (info.nbytes // max(info.size, 1))
            window = self._checkpoint.window(piece.key)
            if window is not None:
                taken = piece.take(window.array)
                views = [taken[cut] for cut in parts]
                cost = window.cost(views)
                self.copied = self.copied or cost is None
                if cost is not None and cost < _WORTH_PARTS * window.array.nbytes:
                    self._pieces[index], self._windows[index] = taken, window
                    self._read += cost
                    if begin:
                        window.prepare(views)
                    continue
            self._read += info.nbytes
            if begin:
                self._checkpoint.prepare(piece.key)

    def _size(self, index: int, cuts: Sequence[Box]) -> int:
        """Return the number of elements in these parts of a piece."""
        size = math.prod(self._shapes[index])
        return sum(math.prod(cut.stop - cut.start for cut in box) if box else size for box in cuts)

    def _piece(self, index: int) -> Array:
        if index not in self._pieces:
            piece = self._leaf.pieces[index]
            self._pieces[index] = piece.take(self._checkpoint.read(piece.key))
        return self._pieces[index]

    @cached_property
    def _whole(self) -> Array:
        return self._join.apply([self._piece(index) for index in range(len(self._shapes))])
