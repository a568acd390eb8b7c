"""Bijections between the axis orders of an array in torch and in Flax; the inverse is derived.

Two of them compute: a number that one model has in its code and the other in its weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Layout(ABC):
    """Bijection between a torch tensor and a Flax array with the same elements.

    `apply` goes from torch to Flax; `inverse.apply` goes back. Elements are not changed unless
    `computes` is true, so both directions are exact for every dtype. `str` returns the form used in
    mapping files, which `converters.layers.text.parse_layout` reads.
    """

    @abstractmethod
    def apply(self, array: Array) -> Array:
        """Return the array in its new arrangement (a view if numpy allows it)."""

    @abstractmethod
    def shape(self, shape: Shape) -> Shape:
        """Return the shape that `apply` gives to an array of this shape. Raise ValueError if it does
        not fit."""

    @property
    @abstractmethod
    def inverse(self) -> Layout:
        """Inverse layout."""

    @property
    def computes(self) -> bool:
        """Whether elements change their values: then the way back is exact only up to rounding."""
        return False

    def at(self, shape: Shape) -> Layout:
        """The layout of an array of this shape, without open sides (`REST`).

        Raises:
            ValueError: the open side is not a whole number there.
        """
        return self

    def opened(self, sides: Mapping[str, str]) -> str:
        """The form for arrays of any size: what follows from the array's shape is left open.

        Args:
            sides: attribute of torch's layer → expression of the sizes that it follows from; without one, the
                attribute's number is written.
        """
        return str(self)


@dataclass(frozen=True)
class Unchanged(Layout):
    """Identical arrangement on both sides."""

    def apply(self, array: Array) -> Array:
        """Return the array itself."""
        return array

    def shape(self, shape: Shape) -> Shape:
        """Return the shape itself."""
        return shape

    @property
    def inverse(self) -> Layout:
        """Itself."""
        return self

    def __str__(self) -> str:
        return "unchanged"


UNCHANGED = Unchanged()


@dataclass(frozen=True)
class Permute(Layout):
    """Axes in another order: axis i of the result is axis `axes[i]` of the input, as in numpy."""

    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.axes) != list(range(len(self.axes))):
            raise ValueError(f"{self.axes} is not a permutation of axes")

    def apply(self, array: Array) -> Array:
        """Return the array with its axes permuted, as a view."""
        return np.transpose(array, self.axes)

    def shape(self, shape: Shape) -> Shape:
        """Return the permuted shape. Raise ValueError if the rank is not the permutation's."""
        if len(shape) != len(self.axes):
            raise ValueError(f"{len(self.axes)} axes expected, the shape is {shape}")
        return tuple(shape[axis] for axis in self.axes)

    @property
    def inverse(self) -> Layout:
        """Inverse permutation."""
        return Permute(tuple(self.axes.index(axis) for axis in range(len(self.axes))))

    def __str__(self) -> str:
        return f"transpose({', '.join(map(str, self.axes))})"


@dataclass(frozen=True)
class Flip(Layout):
    """Reversed order along these axes: a convolution's kernel as a correlation's."""

    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.axes or len(set(self.axes)) != len(self.axes):
            raise ValueError(f"{self.axes} are no axes to flip")

    def apply(self, array: Array) -> Array:
        """Return the array, reversed along the axes, as a view."""
        return np.flip(array, self.axes)

    def shape(self, shape: Shape) -> Shape:
        """Return the shape itself. Raise ValueError if it lacks an axis."""
        if max(self.axes) >= len(shape):
            raise ValueError(f"axes {self.axes} to be flipped, the shape is {shape}")
        return shape

    @property
    def inverse(self) -> Layout:
        """Itself."""
        return self

    def __str__(self) -> str:
        return f"flip({', '.join(map(str, self.axes))})"


# The side of a split or merge that follows from the array's shape.
REST = -1


@dataclass(frozen=True)
class Split(Layout):
    """Split of one axis into several, the first varying slowest: heads and their features.

    Attributes:
        axis: the axis.
        sides: its parts.
        first: attribute of torch's layer that the first part is, if the last part follows from it and the
            array's shape; "" if it is a plain number, None if all parts are numbers of their own.
    """

    axis: int
    sides: tuple[int, ...]
    first: str | None = field(default=None, compare=False)

    def apply(self, array: Array) -> Array:
        """Return the array with the axis split."""
        return array.reshape(self.shape(array.shape))

    def shape(self, shape: Shape) -> Shape:
        """Return the new shape. Raise ValueError if the axis is not as long as the product of its parts."""
        if self.axis >= len(shape) or shape[self.axis] != math.prod(self.sides):
            raise ValueError(f"axis {self.axis} of {shape} is not {self.sides}")
        return (*shape[: self.axis], *self.sides, *shape[self.axis + 1 :])

    @property
    def inverse(self) -> Layout:
        """The axes merged again."""
        return Merge(self.axis, self.sides, self.first)

    def at(self, shape: Shape) -> Layout:
        """See `Layout`."""
        if REST not in self.sides or self.axis >= len(shape):
            return self
        known = -math.prod(self.sides)
        if known < 1 or shape[self.axis] % known:
            raise ValueError(f"axis {self.axis} of {shape} is no multiple of {known}")
        whole = shape[self.axis] // known
        return Split(self.axis, tuple(whole if side == REST else side for side in self.sides))

    def opened(self, sides: Mapping[str, str]) -> str:
        """See `Layout`."""
        return _opened("split", self, sides)

    def __str__(self) -> str:
        return f"split({', '.join(map(str, (self.axis, *self.sides)))})"


@dataclass(frozen=True)
class Merge(Layout):
    """Merge of several axes with these sizes, from `axis` on: the inverse of `Split`.

    Attributes:
        axis: the first of the axes.
        sides: their sizes.
        first: see `Split`.
    """

    axis: int
    sides: tuple[int, ...]
    first: str | None = field(default=None, compare=False)

    def apply(self, array: Array) -> Array:
        """Return the array with the axes merged."""
        return array.reshape(self.shape(array.shape))

    def shape(self, shape: Shape) -> Shape:
        """Return the new shape. Raise ValueError if the axes have other sizes."""
        end = self.axis + len(self.sides)
        if shape[self.axis : end] != self.sides:
            raise ValueError(f"axes {self.axis} to {end - 1} of {shape} are not {self.sides}")
        return (*shape[: self.axis], math.prod(self.sides), *shape[end:])

    @property
    def inverse(self) -> Layout:
        """The axis split again."""
        return Split(self.axis, self.sides, self.first)

    def at(self, shape: Shape) -> Layout:
        """See `Layout`."""
        there = shape[self.axis : self.axis + len(self.sides)]
        if REST not in self.sides or len(there) < len(self.sides):
            return self
        pairs = zip(self.sides, there, strict=True)
        return Merge(self.axis, tuple(size if side == REST else side for side, size in pairs))

    def opened(self, sides: Mapping[str, str]) -> str:
        """See `Layout`."""
        return _opened("merge", self, sides)

    def __str__(self) -> str:
        return f"merge({', '.join(map(str, (self.axis, *self.sides)))})"


def _opened(name: str, layout: Split | Merge, sides: Mapping[str, str]) -> str:
    """A split or merge whose last side is open, and whose first is an expression if there is one."""
    if layout.first is None or len(layout.sides) < 2:
        return str(layout)
    first, *others = layout.sides[:-1]
    parts = (layout.axis, sides.get(layout.first, first), *others, REST)
    return f"{name}({', '.join(map(str, parts))})"


@dataclass(frozen=True)
class Times(Layout):
    """Multiplication of each element by a number, or division by it, rounded once: a factor folded
    into a weight."""

    factor: float
    over: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor) or not self.factor:
            raise ValueError(f"{self.factor} is not a factor")

    def apply(self, array: Array) -> Array:
        """Return the products, in the array's dtype."""
        wide = _wide(array)
        return (wide / self.factor if self.over else wide * self.factor).astype(array.dtype)

    def shape(self, shape: Shape) -> Shape:
        """Return the shape itself."""
        return shape

    @property
    def inverse(self) -> Layout:
        """Division instead of multiplication: exact if the factor is a power of two."""
        return Times(self.factor, not self.over)

    @property
    def computes(self) -> bool:
        """See `Layout`."""
        return True

    def __str__(self) -> str:
        return f"{'over' if self.over else 'times'}({self.factor!r})"


@dataclass(frozen=True)
class Plus(Layout):
    """Number added to each element, rounded once: a scale that starts at 0 in one model and at 1 in
    the other."""

    offset: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.offset):
            raise ValueError(f"{self.offset} is not a number to add")

    def apply(self, array: Array) -> Array:
        """Return the sums, in the array's dtype."""
        return (_wide(array) + self.offset).astype(array.dtype)

    def shape(self, shape: Shape) -> Shape:
        """Return the shape itself."""
        return shape

    @property
    def inverse(self) -> Layout:
        """Subtraction, exact up to rounding."""
        return Plus(-self.offset)

    @property
    def computes(self) -> bool:
        """See `Layout`."""
        return True

    def __str__(self) -> str:
        return f"plus({self.offset!r})"


def affine(factor: float, offset: float) -> Layout:
    """Return the layout that multiplies each element by a number and adds another."""
    return chain(
        (
            Times(factor) if factor != 1 else UNCHANGED,
            Plus(offset) if offset else UNCHANGED,
        )
    )


def _wide(array: Array) -> Array:
    """Return the array in float64, so that only one rounding remains."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


@dataclass(frozen=True)
class Chain(Layout):
    """Sequence of layouts."""

    layouts: tuple[Layout, ...]

    def apply(self, array: Array) -> Array:
        """Return the array, rearranged by each layout in turn."""
        for layout in self.layouts:
            array = layout.apply(array)
        return array

    def shape(self, shape: Shape) -> Shape:
        """Return the last layout's shape. Raise ValueError if one does not fit."""
        for layout in self.layouts:
            shape = layout.shape(shape)
        return shape

    @property
    def inverse(self) -> Layout:
        """Inverse layouts, the last first."""
        return Chain(tuple(layout.inverse for layout in reversed(self.layouts)))

    @property
    def computes(self) -> bool:
        """See `Layout`."""
        return any(layout.computes for layout in self.layouts)

    def at(self, shape: Shape) -> Layout:
        """See `Layout`."""
        layouts = []
        for layout in self.layouts:
            layouts.append(layout.at(shape))
            shape = layouts[-1].shape(shape)
        return Chain(tuple(layouts))

    def opened(self, sides: Mapping[str, str]) -> str:
        """See `Layout`."""
        return " | ".join(layout.opened(sides) for layout in self.layouts)

    def __str__(self) -> str:
        return " | ".join(map(str, self.layouts))


def chain(layouts: Sequence[Layout]) -> Layout:
    """Return one layout for all, omitting layouts that change nothing."""
    flat: list[Layout] = []
    for layout in layouts:
        flat += layout.layouts if isinstance(layout, Chain) else [layout]
    useful = tuple(layout for layout in flat if layout != UNCHANGED)
    if not useful:
        return UNCHANGED
    return useful[0] if len(useful) == 1 else Chain(useful)


@dataclass(frozen=True)
class Part:
    """Slice of a torch tensor along one axis: one of the gates or projections that it holds.

    Attributes:
        axis: the axis of the torch tensor.
        start: the first index.
        stop: the index after the last.
        of: how many equal parts the tensor has, of which this is one; 0 if that is not said.
    """

    axis: int
    start: int
    stop: int
    of: int = field(default=0, compare=False)

    def apply(self, array: Array) -> Array:
        """Return the slice as a view."""
        return array[self._index(array.ndim)]

    def shape(self, shape: Shape) -> Shape:
        """Return the slice's shape. Raise ValueError if the tensor does not contain it."""
        if self.axis >= len(shape) or not 0 <= self.start < self.stop <= shape[self.axis]:
            raise ValueError(f"{self} is not in the shape {shape}")
        return (*shape[: self.axis], self.stop - self.start, *shape[self.axis + 1 :])

    def write(self, array: Array, part: Array) -> None:
        """Write the slice back into the tensor."""
        array[self._index(array.ndim)] = part

    def _index(self, ndim: int) -> tuple[slice, ...]:
        index = [slice(None)] * ndim
        index[self.axis] = slice(self.start, self.stop)
        return tuple(index)

    def opened(self) -> str:
        """The form for tensors of any size."""
        if not self.of:
            return str(self)
        return str(Share(self.axis, self.start // (self.stop - self.start), self.of))

    def __str__(self) -> str:
        return f"slice({self.axis}, {self.start}, {self.stop})"


@dataclass(frozen=True)
class Share:
    """Part of a torch tensor that is one of several equal parts along an axis, whatever its length.

    Attributes:
        axis: the axis of the torch tensor.
        number: number of the part, from 0.
        of: how many parts there are.
    """

    axis: int
    number: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ValueError(f"there is no part {self.number} of {self.of}")

    def at(self, shape: Shape) -> Part:
        """The part of a tensor of this shape. Raise ValueError if it has no such equal parts."""
        if self.axis >= len(shape) or shape[self.axis] % self.of:
            raise ValueError(f"axis {self.axis} of {shape} has no {self.of} equal parts")
        side = shape[self.axis] // self.of
        return Part(self.axis, self.number * side, (self.number + 1) * side, self.of)

    def __str__(self) -> str:
        return f"share({self.axis}, {self.number}, {self.of})"


def firsts(layout: Layout) -> Iterator[str]:
    """The attributes of torch's layer that a layout's splits and merges begin with."""
    if isinstance(layout, Chain):
        for inner in layout.layouts:
            yield from firsts(inner)
    elif isinstance(layout, Split | Merge) and layout.first:
        yield layout.first
