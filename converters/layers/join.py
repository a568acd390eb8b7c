"""Joins of several pieces of torch tensors into one Flax array, and their inverses.

A join takes the pieces in their order and returns the array. `split` returns the pieces, or None if
the array does not determine them. Tensors that are not determined are stored beside the output, so
that the way back is exact (`converters.kept`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Join(ABC):
    """Join of one or more pieces into an array."""

    @abstractmethod
    def apply(self, pieces: Sequence[Array]) -> Array:
        """Return the array."""

    @abstractmethod
    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return its shape. Raise ValueError if pieces of these shapes do not fit together."""

    @abstractmethod
    def split(self, array: Array, shapes: Sequence[Shape]) -> list[Array] | None:
        """Return the pieces, bit for bit; None if the array does not determine them."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the form used in mapping files; `converters.layers.text.parse_join` reads it."""


@dataclass(frozen=True)
class Alone(Join):
    """Join of a single piece, which is the array."""

    def apply(self, pieces: Sequence[Array]) -> Array:
        """Return the piece itself."""
        (piece,) = pieces
        return piece

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return its shape."""
        if len(shapes) != 1:
            raise ValueError(f"one piece expected, there are {len(shapes)}")
        return shapes[0]

    def split(self, array: Array, shapes: Sequence[Shape]) -> list[Array] | None:
        """Return the array itself."""
        return [array]

    def __str__(self) -> str:
        return "alone"


ALONE = Alone()


@dataclass(frozen=True)
class Stack(Join):
    """Pieces of one shape along a new axis, as `nn.scan` expects repeated layers."""

    axis: int = 0

    def apply(self, pieces: Sequence[Array]) -> Array:
        """Stack the pieces."""
        return np.stack(pieces, self.axis)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the pieces' shape with their number at the axis."""
        if len(set(shapes)) != 1:
            raise ValueError(f"pieces of {len(set(shapes))} shapes cannot be stacked")
        if self.axis > len(shapes[0]):
            raise ValueError(f"no axis {self.axis} beside those of {shapes[0]}")
        return (*shapes[0][: self.axis], len(shapes), *shapes[0][self.axis :])

    def split(self, array: Array, shapes: Sequence[Shape]) -> list[Array] | None:
        """Return one piece per index of the axis."""
        return [np.take(array, index, self.axis) for index in range(array.shape[self.axis])]

    def __str__(self) -> str:
        return f"stack({self.axis})"


@dataclass(frozen=True)
class Grid(Join):
    """Pieces of one shape along several new axes: keys and values of layers, (layers, 2, …).

    Attributes:
        axis: the first new axis.
        sides: the sizes of the new axes; the pieces are in row-major order.
    """

    axis: int
    sides: tuple[int, ...]

    def apply(self, pieces: Sequence[Array]) -> Array:
        """Stack the pieces and split the new axis."""
        return np.stack(pieces, self.axis).reshape(self.shape([piece.shape for piece in pieces]))

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the pieces' shape with the new sides at the axis."""
        if len(shapes) != math.prod(self.sides):
            raise ValueError(f"{len(shapes)} pieces do not fill {self.sides}")
        stacked = Stack(self.axis).shape(shapes)
        return (*stacked[: self.axis], *self.sides, *stacked[self.axis + 1 :])

    def split(self, array: Array, shapes: Sequence[Shape]) -> list[Array] | None:
        """Return one piece per index."""
        end = self.axis + len(self.sides)
        merged = (*array.shape[: self.axis], math.prod(self.sides), *array.shape[end:])
        return Stack(self.axis).split(array.reshape(merged), shapes)

    def __str__(self) -> str:
        return f"grid({', '.join(map(str, (self.axis, *self.sides)))})"


@dataclass(frozen=True)
class Concat(Join):
    """Pieces along an existing axis: fused gates, fused query, key and value."""

    axis: int = 0

    def apply(self, pieces: Sequence[Array]) -> Array:
        """Concatenate the pieces."""
        return np.concatenate(pieces, self.axis)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape with the sum of the sides at the axis."""
        rest = {(*shape[: self.axis], *shape[self.axis + 1 :]) for shape in shapes}
        if len(rest) != 1 or any(len(shape) <= self.axis for shape in shapes):
            raise ValueError(f"shapes {list(shapes)} cannot be joined along axis {self.axis}")
        first = shapes[0]
        total = sum(shape[self.axis] for shape in shapes)
        return (*first[: self.axis], total, *first[self.axis + 1 :])

    def split(self, array: Array, shapes: Sequence[Shape]) -> list[Array] | None:
        """Return the parts, as long as the pieces were."""
        ends = np.cumsum([shape[self.axis] for shape in shapes])[:-1]
        return list(np.split(array, ends, self.axis))

    def __str__(self) -> str:
        return f"concat({self.axis})"


@dataclass(frozen=True)
class Sum(Join):
    """Pieces that torch adds and Flax keeps as one array: the two biases of an LSTM's gate."""

    def apply(self, pieces: Sequence[Array]) -> Array:
        """Return their sum in their own dtype, from left to right."""
        total = pieces[0]
        for piece in pieces[1:]:
            total = total + piece
        return total

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape that all pieces share."""
        if len(set(shapes)) != 1:
            raise ValueError(f"pieces of {len(set(shapes))} shapes cannot be added")
        return shapes[0]

    def split(self, array: Array, shapes: Sequence[Shape]) -> list[Array] | None:
        """Return None: a sum does not determine its terms."""
        return None

    def __str__(self) -> str:
        return "sum"


SUM = Sum()


@dataclass(frozen=True)
class ComputedBefore(Join):
    """Value computed by torch from the pieces, as recorded in a file: the result's shape, without the
    function.

    `converters.layers.reparametrized.ComputedWeight` is the same while the module is available.
    """

    sides: tuple[int, ...]

    def apply(self, pieces: Sequence[Array]) -> Array:
        """Raise: the value cannot be computed without the model.

        Raises:
            ValueError: always.
        """
        raise ValueError("what torch computed cannot be computed again without the model")

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the result's shape."""
        return self.sides

    def split(self, array: Array, shapes: Sequence[Shape]) -> list[Array] | None:
        """Return None: the result does not determine its inputs."""
        return None

    def __str__(self) -> str:
        return f"computed({', '.join(map(str, self.sides))})"
