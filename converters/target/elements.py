"""How an array is made of torch's tensors, where it is known of each element which of torch's it is."""

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
    """The elements of many tensors, numbered through: of each tensor in row-major order, one after the other.

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
        """Of all elements."""
        return int(self._starts[-1])

    def of(self, name: str) -> Array:
        """The numbers of a tensor's elements, as it lies."""
        info = self.infos[name]
        return np.arange(self._at[name], self._at[name] + info.size).reshape(info.shape)

    def names(self, numbers: Array) -> list[str]:
        """The tensors that these elements are of."""
        return [self._names[owner] for owner in np.unique(self._owners(numbers))]

    def leaf(self, path: str, numbers: Array) -> PlannedLeaf | None:
        """An array of these elements, as pieces of tensors; None: no layout and no join say it."""
        found = self._joined(numbers)
        if found is None:
            return None
        pieces, join = found
        dtype = self.infos[pieces[0].key].dtype
        return PlannedLeaf(path, TensorInfo(numbers.shape, dtype), pieces, join)

    def _owners(self, numbers: Array) -> Array:
        # Tensors without elements begin where the next one does.
        return np.asarray(np.searchsorted(self._starts, numbers, "right") - 1)

    def _joined(self, numbers: Array) -> tuple[tuple[Piece, ...], Join] | None:
        owners = self._owners(numbers)
        first = int(owners.flat[0]) if owners.size else 0
        if (owners == first).all():
            whole = self._piece(first, numbers)
            return ((whole,), ALONE) if whole is not None else self._cut(numbers, owners)
        for axis in range(numbers.ndim):
            line = np.moveaxis(owners, axis, 0).reshape(numbers.shape[axis], -1)
            if (line == line[:, :1]).all():
                return self._along(numbers, axis, line[:, 0].tolist())
        for axis in range(numbers.ndim - 1):
            sides = numbers.shape[axis : axis + 2]
            merged = numbers.reshape(
                (*numbers.shape[:axis], math.prod(sides), *numbers.shape[axis + 2 :])
            )
            found = self._joined(merged)
            if found is not None and found[1] == Stack(axis):
                return found[0], Grid(axis, sides)
        return None

    def _along(
        self, numbers: Array, axis: int, owners: Sequence[int]
    ) -> tuple[tuple[Piece, ...], Join] | None:
        """Slices along an axis, each of one tensor: stacked where there is one of each, else side by side."""
        slices = np.moveaxis(numbers, axis, 0)
        stacked = [self._piece(owner, one) for owner, one in zip(owners, slices, strict=True)]
        if None not in stacked:
            shapes = {one.shape(self.infos[one.key].shape) for one in stacked if one is not None}
            if len(shapes) == 1:
                return tuple(one for one in stacked if one is not None), Stack(axis)
        runs = [(owner, len(list(its))) for owner, its in itertools.groupby(owners)]
        ends = list(itertools.accumulate(length for _, length in runs))
        parts = np.split(numbers, ends[:-1], axis)
        pieces = [self._piece(owner, one) for (owner, _), one in zip(runs, parts, strict=True)]
        if None in pieces:
            return None
        return tuple(one for one in pieces if one is not None), Concat(axis)

    def _cut(self, numbers: Array, owners: Array) -> tuple[tuple[Piece, ...], Join] | None:
        """Parts of one tensor in another order than they have in it: each along an axis."""
        owner = int(owners.flat[0])
        for axis, side in enumerate(numbers.shape):
            for count in (2, 3, 4):
                if side == count:
                    slices = [self._piece(owner, one) for one in np.moveaxis(numbers, axis, 0)]
                    if None not in slices:
                        return tuple(one for one in slices if one is not None), Stack(axis)
                if side % count == 0 and side > count:
                    parts = np.split(numbers, count, axis)
                    pieces = [self._piece(owner, one) for one in parts]
                    if None not in pieces:
                        return tuple(one for one in pieces if one is not None), Concat(axis)
        return None

    def _piece(self, owner: int, numbers: Array) -> Piece | None:
        name = self._names[owner]
        shape = self.infos[name].shape
        local = numbers - self._starts[owner]
        part = None
        if local.size != math.prod(shape):
            places = np.unravel_index(local, shape)
            box = [(int(one.min()), int(one.max()) + 1) for one in places]
            cut = [axis for axis, ends in enumerate(box) if ends != (0, shape[axis])]
            if len(cut) != 1:
                return None
            axis = cut[0]
            part = Part(axis, *box[axis])
            shape = part.shape(shape)
            moved = [one - low for one, (low, _) in zip(places, box, strict=True)]
            local = np.ravel_multi_index(moved, shape)
        layout = layout_of(local, shape)
        return None if layout is None else Piece(name, layout, part)


def layout_of(numbers: Array, shape: Shape) -> Layout | None:
    """The layout from a tensor of this shape to an array of these of its elements; None: there is none.

    Each axis of the array counts through the tensor in steps, like the digits of a number: from these follow
    the axes to take apart, their order, and those to join again.

    Args:
        numbers: for each element of the array which of the tensor's it is, in row-major order.
        shape: of the tensor.
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
    order = sorted(range(len(factors)), key=lambda one: -factors[one][2])
    step = 1
    for one in reversed(order):
        if factors[one][2] != step:
            return None
        step *= factors[one][1]
    counts = tuple(factors[one][1] for one in order)
    axes = tuple(order.index(one) for one in range(len(factors)))
    turned = UNCHANGED if axes == tuple(range(len(axes))) else Permute(axes)
    if turned == UNCHANGED:
        return reshaped(shape, numbers.shape)
    moved = tuple(count for _, count, _ in factors)
    return chain((reshaped(shape, counts), turned, reshaped(moved, numbers.shape)))


def _digits(line: Array) -> list[tuple[int, int]] | None:
    """Counts and steps in which a line of numbers that begins with 0 goes up, the slowest first."""
    if line[0] != 0:
        return None
    found: list[tuple[int, int]] = []
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
        found.insert(0, (run, step))
        line = heads
    return found


def reshaped(shape: Shape, wanted: Shape) -> Layout:
    """The same elements in the same order in another shape."""
    if shape == wanted:
        return UNCHANGED
    start = 0
    while start < min(len(shape), len(wanted)) and shape[start] == wanted[start]:
        start += 1
    end = 0
    while end < min(len(shape), len(wanted)) - start and shape[-1 - end] == wanted[-1 - end]:
        end += 1
    before, after = shape[start : len(shape) - end], wanted[start : len(wanted) - end]
    if not before and shape:  # sides of one come
        near = min(start, len(shape) - 1)
        return Split(near, (*after, shape[near]) if start == near else (shape[near], *after))
    if not after and wanted:  # or go
        return reshaped(wanted, shape).inverse
    if len(before) == 1:
        return Split(start, after)
    if len(after) == 1:
        return Merge(start, before)
    return chain((Merge(start, before), Split(start, after)))


def refines(fine: Shape, coarse: Shape) -> bool:
    """Whether joining neighbouring axes of the first gives the second."""
    ends = set(itertools.accumulate(fine, lambda a, b: a * b)) | {1}
    return math.prod(fine) == math.prod(coarse) and ends >= set(
        itertools.accumulate(coarse, lambda a, b: a * b)
    )
