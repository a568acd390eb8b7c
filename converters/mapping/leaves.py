"""The arrays of a pytree, each with the pieces of torch tensors that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Join
from converters.layers.layout import UNCHANGED, Layout, Part

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Piece:
    """A torch tensor or a part of it, in the arrangement that Flax wants.

    Attributes:
        key: the torch key.
        layout: from torch's arrangement to Flax's.
        part: what of the tensor; None: all of it.
    """

    key: str
    layout: Layout = UNCHANGED
    part: Part | None = None

    def take(self, tensor: Array) -> Array:
        """The piece of the tensor, a view where numpy allows it."""
        return self.layout.apply(tensor if self.part is None else self.part.apply(tensor))

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Its shape, for a tensor of this shape; ValueError if it does not fit."""
        return self.layout.shape(shape if self.part is None else self.part.shape(shape))

    def put(self, array: Array, tensor: Array) -> None:
        """Write the piece back to its place in the torch tensor."""
        restored = self.layout.inverse.apply(array)
        if self.part is None:
            tensor[...] = restored
        else:
            self.part.write(tensor, restored)


@dataclass(frozen=True)
class PlannedLeaf:
    """One array of the pytree.

    Attributes:
        path: `/`-joined, collection first ("params/encoder/kernel").
        info: its shape and dtype.
        pieces: what it is made from, in the order of the join.
        join: how.
    """

    path: str
    info: TensorInfo
    pieces: tuple[Piece, ...]
    join: Join = ALONE

    def read(self, tensor_of: Callable[[str], Array]) -> Array:
        """The array, from the torch tensors by key."""
        return self.join.apply([piece.take(tensor_of(piece.key)) for piece in self.pieces])


def keys_of(leaves: Iterable[PlannedLeaf]) -> dict[str, list[PlannedLeaf]]:
    """Torch key → the arrays that have a piece of it."""
    found: dict[str, list[PlannedLeaf]] = {}
    for leaf in leaves:
        for key in dict.fromkeys(piece.key for piece in leaf.pieces):
            found.setdefault(key, []).append(leaf)
    return found


def restore(
    key: str,
    info: TensorInfo,
    leaves: Iterable[PlannedLeaf],
    infos: Mapping[str, TensorInfo],
    array_of: Callable[[str], Array],
) -> Array | None:
    """The torch tensor of a key from the arrays that have its pieces: the way back.

    Args:
        key: the torch key.
        info: its shape and dtype in torch.
        leaves: the arrays that have pieces of it (`keys_of`).
        infos: of every torch key that has a piece in one of them.
        array_of: path → array.

    Returns:
        The tensor, or None where an array's join cannot be undone or the pieces leave a gap.
    """
    tensor: Array | None = None
    filled = 0
    for leaf in leaves:
        shapes = [piece.shape(infos[piece.key].shape) for piece in leaf.pieces]
        array = array_of(leaf.path)
        if tensor is None:
            if leaf.join == ALONE and leaf.pieces[0].part is None:
                return np.asarray(leaf.pieces[0].layout.inverse.apply(array))
            tensor = np.empty(info.shape, array.dtype)
        pieces = leaf.join.split(array, shapes)
        if pieces is None:
            return None
        for piece, value in zip(leaf.pieces, pieces, strict=True):
            if piece.key == key:
                piece.put(value, tensor)
                filled += value.size
    return tensor if filled == info.size else None
