"""Which rearrangements of an array a layer kind permits, so that it has the shape that a target wants."""

from __future__ import annotations

from converters.layers.layout import UNCHANGED, Layout, Merge, Permute, Split, chain

Shape = tuple[int, ...]

# Of these the rows or columns may be heads and what each has; of others no axis is taken apart.
_OF_HEADS = ("Linear", "MultiheadAttention", "Parameter")
TRANSPOSED = Permute((1, 0))


def permitted(kind: str, role: str, shape: Shape, wanted: Shape) -> list[Layout]:
    """The layouts from Flax's usual arrangement of this layer to the shape wanted; none if it has none.

    Args:
        kind: of the torch layer ("Linear", "Embedding", "Parameter").
        role: "kernel", "bias", "scale", "value", "mean", "var".
        shape: of the array as the plan has it.
        wanted: of the array of the target.
    """
    found: list[Layout] = []
    if shape == wanted:
        found.append(UNCHANGED)
    elif _without_ones(shape) == _without_ones(wanted):
        found.append(_reshape(shape, wanted))
    elif kind in _OF_HEADS and role in ("kernel", "bias"):
        found += _split(shape, wanted)
        found += [layout.inverse for layout in _split(wanted, shape)]
    if kind == "Parameter" and role == "kernel" and len(shape) == 2:
        # A user's own layer: torch's arrangement is not known to be Flax's.
        turned = shape[::-1]
        if turned == wanted:
            found.append(TRANSPOSED)
        else:
            found += [chain((TRANSPOSED, layout)) for layout in _split(turned, wanted)]
    return found


def _without_ones(shape: Shape) -> Shape:
    return tuple(side for side in shape if side != 1)


def _reshape(shape: Shape, wanted: Shape) -> Layout:
    """The same elements in the same order: only sides of one come and go."""
    if len(shape) > 1 and len(wanted) > 1:
        return chain((Merge(0, shape), Split(0, wanted)))
    return Split(0, wanted) if len(shape) == 1 else Merge(0, shape)


def _split(shape: Shape, wanted: Shape) -> list[Layout]:
    """One axis in two, the others as they are."""
    if len(wanted) != len(shape) + 1:
        return []
    found: list[Layout] = []
    for axis, side in enumerate(shape):
        first, second = wanted[axis : axis + 2]
        if first * second == side and wanted == (*shape[:axis], first, second, *shape[axis + 1 :]):
            found.append(Split(axis, (first, second)))
    return found
