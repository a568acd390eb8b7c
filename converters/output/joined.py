"""Parts of an array that several tensors make, without the whole of it in memory."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from converters.checkpoint.reader import Checkpoint
from converters.layers.join import Alone, Concat, Stack, Sum
from converters.mapping.leaves import PlannedLeaf

Array = np.ndarray[Any, Any]
Box = tuple[slice, ...]


class Joined:
    """A planned leaf as an array of which parts are made on demand.

    A join that is not known here is made whole, once.

    Args:
        leaf: the leaf.
        checkpoint: where its tensors are.
    """

    def __init__(self, leaf: PlannedLeaf, checkpoint: Checkpoint) -> None:
        self._leaf = leaf
        self._join = leaf.join
        self._pieces = [piece.take(checkpoint.read(piece.key)) for piece in leaf.pieces]
        self.shape = leaf.join.shape([piece.shape for piece in self._pieces])
        self.dtype = self._pieces[0].dtype

    def __getitem__(self, box: Box) -> Array:
        """The part in this box: for each axis a slice with both ends, not empty."""
        join = self._join
        if isinstance(join, Alone):
            return self._pieces[0][box]
        if isinstance(join, Sum):
            return join.apply([piece[box] for piece in self._pieces])
        if isinstance(join, Stack):
            chosen = self._pieces[box[join.axis]]
            rest = (*box[: join.axis], *box[join.axis + 1 :])
            return join.apply([piece[rest] for piece in chosen])
        if isinstance(join, Concat):
            return join.apply(self._overlapping(box, join.axis))
        return self._whole[box]

    def _overlapping(self, box: Box, axis: int) -> list[Array]:
        found: list[Array] = []
        begin = 0
        for piece in self._pieces:
            end = begin + piece.shape[axis]
            first, last = max(box[axis].start, begin), min(box[axis].stop, end)
            if first < last:
                cut = slice(first - begin, last - begin)
                found.append(piece[(*box[:axis], cut, *box[axis + 1 :])])
            begin = end
        return found

    @cached_property
    def _whole(self) -> Array:
        return self._join.apply(self._pieces)
