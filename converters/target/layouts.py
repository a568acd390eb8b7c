"""Rearrangements of an array that a layer kind permits, to reach the shape in a target."""

from __future__ import annotations

from converters.layers.layout import UNCHANGED, Layout, Merge, Permute, Split, chain

Shape = tuple[int, ...]

# Kinds whose rows or columns may be split into heads and features; no axis of other kinds is split.
_OF_HEADS = ("Linear", "MultiheadAttention", "Parameter")
TRANSPOSED = Permute((1, 0))


def permitted(kind: str, role: str, shape: Shape, wanted: Shape) -> list[Layout]:
    """Return the layouts from Flax's usual arrangement of this layer to the requested shape.

    Args:
        kind: the kind of the torch layer ("Linear", "Embedding", "Parameter").
        role: "kernel", "bias", "scale", "value", "mean", "var".
        shape: the shape of the array in the plan.
        wanted: the shape of the array in the target.
    """
    layouts: list[Layout] = []
    if shape == wanted:
        layouts.append(UNCHANGED)
    elif _without_ones(shape) == _without_ones(wanted):
        layouts.append(_reshape(shape, wanted))
    elif kind in _OF_HEADS and role in ("kernel", "bias"):
        layouts += _split(shape, wanted)
        layouts += [layout.inverse for layout in _split(wanted, shape)]
    if kind == "Parameter" and role == "kernel" and len(shape) == 2:
        # A user's own layer: torch's arrangement may differ from Flax's.
        turned = shape[::-1]
        if turned == wanted:
            layouts.append(TRANSPOSED)
        else:
            layouts += [chain((TRANSPOSED, layout)) for layout in _split(turned, wanted)]
    return layouts


def _without_ones(shape: Shape) -> Shape:
    return tuple(side for side in shape if side != 1)


def _reshape(shape: Shape, wanted: Shape) -> Layout:
    """Return the layout that keeps the elements in order: only axes of size 1 appear or disappear."""
    if len(shape) > 1 and len(wanted) > 1:
        return chain((Merge(0, shape), Split(0, wanted)))
    return Split(0, wanted) if len(shape) == 1 else Merge(0, shape)


def _split(shape: Shape, wanted: Shape) -> list[Layout]:
    """Return the layouts that split one axis in two and keep the others."""
    if len(wanted) != len(shape) + 1:
        return []
    splits: list[Layout] = []
    for axis, side in enumerate(shape):
        first, second = wanted[axis : axis + 2]
        if first * second == side and wanted == (*shape[:axis], first, second, *shape[axis + 1 :]):
            splits.append(Split(axis, (first, second)))
    return splits
