"""How one array's axes are arranged in torch and in Flax: bijections, whose inverse is derived."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np


class Layout(ABC):
    """A bijection between a torch tensor and a Flax array of the same elements.

    `apply` goes from torch to Flax; `inverse.apply` goes back. No element is computed on, so both
    are exact for every dtype.
    """

    @abstractmethod
    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array in its new arrangement (a view where numpy allows it)."""

    @abstractmethod
    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that `apply` gives to an array of this shape; ValueError for a wrong rank."""

    @property
    @abstractmethod
    def inverse(self) -> Layout:
        """The way back."""


@dataclass(frozen=True)
class Unchanged(Layout):
    """The same arrangement on both sides."""

    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array itself."""
        return array

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape itself."""
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

    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The array with its axes permuted, a view."""
        return np.transpose(array, self.axes)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The permuted shape; ValueError if the rank is not the permutation's."""
        if len(shape) != len(self.axes):
            raise ValueError(f"{len(self.axes)} axes expected, the shape is {shape}")
        return tuple(shape[axis] for axis in self.axes)

    @property
    def inverse(self) -> Layout:
        """The permutation that undoes this one."""
        return Permute(tuple(self.axes.index(axis) for axis in range(len(self.axes))))

    def __str__(self) -> str:
        return f"axes {self.axes}"
