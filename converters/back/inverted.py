"""Torch tensors as leaves made from the arrays of a pytree, so that they are written piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Concat, Join, Stack
from converters.layers.layout import Layout, Merge, Part, chain
from converters.mapping.leaves import Piece, PlannedLeaf


def inverted(
    key: str, info: TensorInfo, leaves: Iterable[PlannedLeaf], infos: Mapping[str, TensorInfo]
) -> PlannedLeaf | None:
    """Return the tensor as a leaf, whose pieces are (parts of) arrays given by their paths.

    Args:
        key: the torch key; it is the leaf's path.
        info: the tensor's shape, and the requested dtype.
        leaves: the arrays with pieces of it.
        infos: shape and dtype of every torch key with a piece in one of the arrays.

    Returns:
        The leaf; None if an array's join cannot be undone, or the parts are not contiguous.
    """
    pieces: list[tuple[Part | None, Piece]] = []
    for leaf in leaves:
        for index, piece in enumerate(leaf.pieces):
            if piece.key != key:
                continue
            inverse = _from_array(leaf, index, infos)
            if inverse is None:
                return None
            pieces.append((piece.part, inverse))
    join = _join([part for part, _ in pieces], info)
    if join is None:
        return None
    pieces.sort(key=lambda item: item[0].start if item[0] else 0)
    return PlannedLeaf(key, info, tuple(piece for _, piece in pieces), join)


def _from_array(leaf: PlannedLeaf, index: int, infos: Mapping[str, TensorInfo]) -> Piece | None:
    """Return a piece of an array as a piece of the torch tensor."""
    layout = leaf.pieces[index].layout.inverse
    if leaf.join == ALONE:
        return Piece(leaf.path, layout)
    if isinstance(leaf.join, Concat):
        axis = leaf.join.axis
        sides = [piece.shape(infos[piece.key].shape)[axis] for piece in leaf.pieces]
        start = sum(sides[:index])
        return Piece(leaf.path, layout, Part(axis, start, start + sides[index]))
    if isinstance(leaf.join, Stack):
        axis = leaf.join.axis
        without = _without_axis(leaf.info.shape, axis)
        if without is not None:
            return Piece(leaf.path, chain((without, layout)), Part(axis, index, index + 1))
    return None


def _without_axis(shape: tuple[int, ...], axis: int) -> Layout | None:
    """Return the layout that removes an axis of size 1; None if it is the only axis."""
    if len(shape) < 2:
        return None
    if axis:
        return Merge(axis - 1, (shape[axis - 1], 1))
    return Merge(axis, (1, shape[axis + 1]))


def _join(parts: list[Part | None], info: TensorInfo) -> Join | None:
    """Return the join of the pieces into the tensor."""
    if len(parts) == 1 and parts[0] is None:
        return ALONE
    ordered = sorted((part for part in parts if part is not None), key=lambda part: part.start)
    if len(ordered) != len(parts) or len({part.axis for part in ordered}) != 1:
        return None
    axis = ordered[0].axis
    ends = [0, *(part.stop for part in ordered)]
    if [part.start for part in ordered] != ends[:-1] or ends[-1] != info.shape[axis]:
        return None
    return Concat(axis)
