"""Layout of an array whose elements are traced to the elements of torch tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Concat, Grid, Join, Stack
from converters.layers.layout import UNCHANGED, Layout, Merge, Part, Permute, Split, chain
from converters.mapping.leaves import Piece, PlannedLeaf

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Elements:
    """Elements of many tensors, numbered consecutively: each tensor in row-major order, one after the
    other.

    Args:
        infos: the tensors.
    """

    def __init__(self, infos: Mapping[str, TensorInfo]) -> None:
        self.infos = dict(infos)
        self._names = list(self.infos)
        sizes = [info.size for info in self.infos.values()]
        self._starts = np.array([0, *itertools.accumulate(sizes)], np.int64)
        self._at = dict(zip(self._names, self._starts.tolist(), strict=False))

    @property
    def count(self) -> int:
        """Number of all elements."""
        return int(self._starts[-1])

    def of(self, name: str) -> Array:
        """Return the numbers of a tensor's elements, in the tensor's shape."""
        info = self.infos[name]
        return np.arange(self._at[name], self._at[name] + info.size).reshape(info.shape)

    def names(self, numbers: Array) -> list[str]:
        """Return the tensors that these elements belong to."""
        return [self._names[owner] for owner in np.unique(self._owners(numbers))]

    def leaf(self, path: str, numbers: Array) -> PlannedLeaf | None:
        """Return an array of these elements, as pieces of tensors; None if no layout and join describe
        it."""
        pieces_and_join = self._joined(numbers)
        if pieces_and_join is None:
            return None
        pieces, join = pieces_and_join
        dtype = self.infos[pieces[0].key].dtype
        return PlannedLeaf(path, TensorInfo(numbers.shape, dtype), pieces, join)

    def _owners(self, numbers: Array) -> Array:
        # Tensors without elements begin where the next tensor does.
        return np.asarray(np.searchsorted(self._starts, numbers, "right") - 1)

    def _joined(self, numbers: Array) -> tuple[tuple[Piece, ...], Join] | None:
        owners = self._owners(numbers)
        first = int(owners.flat[0]) if owners.size else 0
        if (owners == first).all():
            piece = self._piece(first, numbers)
            return ((piece,), ALONE) if piece is not None else self._cut(numbers, owners)
        for axis in range(numbers.ndim):
            line = np.moveaxis(owners, axis, 0).reshape(numbers.shape[axis], -1)
            if (line == line[:, :1]).all():
                return self._along(numbers, axis, line[:, 0].tolist())
        for axis in range(numbers.ndim - 1):
            sides = numbers.shape[axis : axis + 2]
            merged = numbers.reshape(
                (*numbers.shape[:axis], math.prod(sides), *numbers.shape[axis + 2 :])
            )
            merged_pieces = self._joined(merged)
            if merged_pieces is not None and merged_pieces[1] == Stack(axis):
                return merged_pieces[0], Grid(axis, sides)
        return None

    def _along(
        self, numbers: Array, axis: int, owners: Sequence[int]
    ) -> tuple[tuple[Piece, ...], Join] | None:
        """Return slices along an axis, each of one tensor: stacked if there is one per index, else
        concatenated."""
        slices = np.moveaxis(numbers, axis, 0)
        stacked = [
            self._piece(owner, numbers_of) for owner, numbers_of in zip(owners, slices, strict=True)
        ]
        if None not in stacked:
            shapes = {
                piece.shape(self.infos[piece.key].shape) for piece in stacked if piece is not None
            }
            if len(shapes) == 1:
                return tuple(piece for piece in stacked if piece is not None), Stack(axis)
        runs = [(owner, len(list(run))) for owner, run in itertools.groupby(owners)]
        ends = list(itertools.accumulate(length for _, length in runs))
        parts = np.split(numbers, ends[:-1], axis)
        pieces = [
            self._piece(owner, numbers_of)
            for (owner, _), numbers_of in zip(runs, parts, strict=True)
        ]
        if None in pieces:
            return None
        return tuple(piece for piece in pieces if piece is not None), Concat(axis)

    def _cut(self, numbers: Array, owners: Array) -> tuple[tuple[Piece, ...], Join] | None:
        """Return parts of one tensor in another order than in the tensor, each along an axis."""
        owner = int(owners.flat[0])
        for axis, side in enumerate(numbers.shape):
            for count in (2, 3, 4):
                if side == count:
                    slices = [
                        self._piece(owner, numbers_of)
                        for numbers_of in np.moveaxis(numbers, axis, 0)
                    ]
                    if None not in slices:
                        return tuple(piece for piece in slices if piece is not None), Stack(axis)
                if side % count == 0 and side > count:
                    parts = np.split(numbers, count, axis)
                    pieces = [self._piece(owner, numbers_of) for numbers_of in parts]
                    if None not in pieces:
                        return tuple(piece for piece in pieces if piece is not None), Concat(axis)
        return None

    def _piece(self, owner: int, numbers: Array) -> Piece | None:
        name = self._names[owner]
        shape = self.infos[name].shape
        local = numbers - self._starts[owner]
        part = None
        if local.size != math.prod(shape):
            places = np.unravel_index(local, shape)
            box = [(int(index.min()), int(index.max()) + 1) for index in places]
            cut = [axis for axis, ends in enumerate(box) if ends != (0, shape[axis])]
            if len(cut) != 1:
                return None
            axis = cut[0]
            part = Part(axis, *box[axis])
            shape = part.shape(shape)
            moved = [index - low for index, (low, _) in zip(places, box, strict=True)]
            local = np.ravel_multi_index(moved, shape)
        layout = layout_of(local, shape)
        return None if layout is None else Piece(name, layout, part)


def layout_of(numbers: Array, shape: Shape) -> Layout | None:
    """Return the layout from a tensor of this shape to an array of these elements, or None.

    Each axis of the array counts through the tensor in steps, like the digits of a number. The
    steps determine the axes to split, their order, and the axes to merge.

    Args:
        numbers: the tensor element of each array element, in row-major order.
        shape: the shape of the tensor.
    """
    if numbers.size != math.prod(shape):
        return None
    if numbers.size <= 1:
        return reshaped(shape, numbers.shape) if numbers.flat[0] == 0 else None
    factors: list[tuple[int, int, int]] = []  # axis of the array, count, step
    total = np.zeros((), np.int64)
    for axis, side in enumerate(numbers.shape):
        index: list[Any] = [0] * numbers.ndim
        index[axis] = slice(None)
        line = numbers[tuple(index)]
        total = total[..., None] + line
        digits = _digits(line) if side > 1 else []
        if digits is None:
            return None
        factors += [(axis, count, step) for count, step in digits]
    if not np.array_equal(total, numbers):
        return None
    order = sorted(range(len(factors)), key=lambda number: -factors[number][2])
    step = 1
    for number in reversed(order):
        if factors[number][2] != step:
            return None
        step *= factors[number][1]
    counts = tuple(factors[number][1] for number in order)
    axes = tuple(order.index(number) for number in range(len(factors)))
    turned = UNCHANGED if axes == tuple(range(len(axes))) else Permute(axes)
    if turned == UNCHANGED:
        return reshaped(shape, numbers.shape)
    moved = tuple(count for _, count, _ in factors)
    return chain((reshaped(shape, counts), turned, reshaped(moved, numbers.shape)))


def _digits(line: Array) -> list[tuple[int, int]] | None:
    """Return the counts and steps of an ascending line of numbers that begins with 0, the slowest first."""
    if line[0] != 0:
        return None
    digits: list[tuple[int, int]] = []
    while len(line) > 1:
        step = int(line[1])
        even = np.arange(len(line)) * step == line
        run = len(line) if even.all() else int(np.argmin(even))
        while len(line) % run:
            run -= 1
        heads = line[::run]
        if (
            step <= 0
            or run == 1
            or not np.array_equal((heads[:, None] + np.arange(run) * step).reshape(-1), line)
        ):
            return None
        digits.insert(0, (run, step))
        line = heads
    return digits


def reshaped(shape: Shape, wanted: Shape) -> Layout:
    """Return the layout that gives another shape to the same elements in the same order."""
    if shape == wanted:
        return UNCHANGED
    start = 0
    while start < min(len(shape), len(wanted)) and shape[start] == wanted[start]:
        start += 1
    end = 0
    while end < min(len(shape), len(wanted)) - start and shape[-1 - end] == wanted[-1 - end]:
        end += 1
    before, after = shape[start : len(shape) - end], wanted[start : len(wanted) - end]
    if not before and shape:  # axes of size 1 appear
        near = min(start, len(shape) - 1)
        return Split(near, (*after, shape[near]) if start == near else (shape[near], *after))
    if not after and wanted:  # or disappear
        return reshaped(wanted, shape).inverse
    if len(before) == 1:
        return Split(start, after)
    if len(after) == 1:
        return Merge(start, before)
    return chain((Merge(start, before), Split(start, after)))


def refines(fine: Shape, coarse: Shape) -> bool:
    """Whether merging neighboring axes of the first gives the second."""
    ends = set(itertools.accumulate(fine, lambda a, b: a * b)) | {1}
    return math.prod(fine) == math.prod(coarse) and ends >= set(
        itertools.accumulate(coarse, lambda a, b: a * b)
    )
