"""Random numbers of a comparison: both sides draw the same, whatever their generators would produce.

The n-th draw of a kind and a shape is the same array in every pass of every side: it follows from the seed.
Both sides derive distributions with parameters from it in the same way (a normal one is scaled, a choice is
`uniform >= 1 - p`), so that their parameters are compared too. A side that draws another kind or shape, or in
another order, gets other numbers, and differs.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Kind = Literal["normal", "uniform", "integers", "exponential", "gumbel", "permutation"]
Array = np.ndarray[Any, Any]


class Draws:
    """Draws of one pass.

    Args:
        seed: seed of the comparison.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._counts: Counter[tuple[Kind, tuple[int, ...]]] = Counter()

    @property
    def used(self) -> bool:
        """Whether anything was drawn."""
        return bool(self._counts)

    def next(self, kind: Kind, shape: Sequence[int]) -> Array:
        """Return the next array of this kind and shape, from the standard distribution, in float32.

        "integers" and "permutation" are uniform numbers, which the caller turns into integers.
        """
        sides = tuple(int(side) for side in shape)
        number = self._counts[kind, sides]
        self._counts[kind, sides] += 1
        random = np.random.default_rng([self._seed, zlib.crc32(kind.encode()), number, *sides])
        if kind == "normal":
            return np.asarray(random.standard_normal(sides, np.float32))
        if kind == "exponential":
            return np.asarray(random.standard_exponential(sides, np.float32))
        if kind == "gumbel":
            return np.asarray(random.gumbel(size=sides), np.float32)
        return np.asarray(random.random(sides, np.float32))


def whole(uniform: Array, low: Any, high: Any) -> Array:
    """Integers from `low` to below `high`."""
    span = np.asarray(high, np.float64) - np.asarray(low, np.float64)
    return np.asarray(np.floor(uniform.astype(np.float64) * span) + low, np.int64)


def order(uniform: Array) -> Array:
    """Permutation from uniform numbers."""
    return np.argsort(uniform, kind="stable")
