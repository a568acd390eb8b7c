"""Arrays of a pytree, each with the pieces of torch tensors that it consists of."""

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
    """Torch tensor or a part of it, in the arrangement of Flax.

    Attributes:
        key: the torch key.
        layout: the layout from torch's arrangement to Flax's.
        part: the part of the tensor; None for all of it.
    """

    key: str
    layout: Layout = UNCHANGED
    part: Part | None = None

    def take(self, tensor: Array) -> Array:
        """Return the piece of the tensor, a view if numpy allows it."""
        return self.layout.apply(tensor if self.part is None else self.part.apply(tensor))

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return its shape for a tensor of this shape. Raise ValueError if it does not fit."""
        return self.layout.shape(shape if self.part is None else self.part.shape(shape))

    def put(self, array: Array, tensor: Array) -> None:
        """Write the piece back into the torch tensor."""
        restored = self.layout.inverse.apply(array)
        if self.part is None:
            tensor[...] = restored
        else:
            self.part.write(tensor, restored)


@dataclass(frozen=True)
class PlannedLeaf:
    """Array of the pytree.

    Attributes:
        path: the `/`-joined path, collection first ("params/encoder/kernel").
        info: its shape and dtype.
        pieces: its pieces, in the order of the join.
        join: the join of the pieces.
    """

    path: str
    info: TensorInfo
    pieces: tuple[Piece, ...]
    join: Join = ALONE

    def read(self, tensor_of: Callable[[str], Array]) -> Array:
        """Return the array, from the torch tensors by key."""
        return self.join.apply([piece.take(tensor_of(piece.key)) for piece in self.pieces])


def keys_of(leaves: Iterable[PlannedLeaf]) -> dict[str, list[PlannedLeaf]]:
    """Return torch key → the arrays that contain a piece of it."""
    leaves_by_key: dict[str, list[PlannedLeaf]] = {}
    for leaf in leaves:
        for key in dict.fromkeys(piece.key for piece in leaf.pieces):
            leaves_by_key.setdefault(key, []).append(leaf)
    return leaves_by_key


def restore(
    key: str,
    info: TensorInfo,
    leaves: Iterable[PlannedLeaf],
    infos: Mapping[str, TensorInfo],
    array_of: Callable[[str], Array],
) -> Array | None:
    """Return the torch tensor of a key from the arrays that contain its pieces: the way back.

    Args:
        key: the torch key.
        info: its shape and dtype in torch.
        leaves: the arrays that have pieces of it (`keys_of`).
        infos: shape and dtype of every torch key with a piece in one of the arrays.
        array_of: path → array.

    Returns:
        The tensor, or None if an array's join cannot be undone or the pieces leave a gap.
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
