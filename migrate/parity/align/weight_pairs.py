"""Pair the weights of a side with the truth's, so that their gradients can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.layers.join import ALONE, Concat, Join, Stack, Sum
from converters.mapping.leaves import Piece, PlannedLeaf
from migrate.parity.align.weight_map import WeightMap

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WeightPair:
    """Weight of a side and the weights of the truth that it is made from.

    Attributes:
        name: name of the side's weight.
        truths: names of the truth's weights, in the order of the pieces; a name may come twice.
        pieces: how each of them lies in the side's weight; empty: unchanged.
        join: how the pieces are put together.
    """

    name: str
    truths: tuple[str, ...]
    pieces: tuple[Piece, ...] = ()
    join: Join = ALONE

    @property
    def comparable(self) -> bool:
        """Whether its gradient shows the truth's: not where it was computed from them (weight norm)."""
        return self.join == ALONE or isinstance(self.join, Stack | Concat | Sum)

    def beside(
        self, mine: Array, truth: Callable[[str], Array]
    ) -> Iterator[tuple[str, Array, Array]]:
        """Yield parts of the side's gradient with the matching gradients of the truth.

        Moving elements moves their gradients likewise. Torch adds the two biases of an LSTM's gate and Flax
        keeps their sum: each of the two biases has the sum's gradient.

        Args:
            mine: the side's gradient.
            truth: name → the truth's gradient.

        Yields:
            The truth's name, its gradient in the side's arrangement, the side's part.

        Raises:
            ValueError: the shapes do not fit.
        """
        if not self.pieces:
            yield self.truths[0], truth(self.truths[0]), mine
            return
        taken = [piece.take(truth(piece.key)) for piece in self.pieces]
        if isinstance(self.join, Sum):
            parts: list[Array] | None = [mine] * len(taken)
        else:
            parts = self.join.split(mine, [part.shape for part in taken])
        for piece, truth_part, part in zip(self.pieces, taken, parts or (), strict=True):
            yield piece.key, truth_part, part


def paired_weights(weights: WeightMap) -> tuple[WeightPair, ...]:
    """Pair the weights that were loaded from the truth into a side."""
    leaves = {leaf.path: leaf for leaf in weights.leaves}
    return tuple(
        _of_leaf(leaves[name]) if name in leaves else WeightPair(name, truths)
        for name, truths in weights.names.items()
    )


def _of_leaf(leaf: PlannedLeaf) -> WeightPair:
    keys = tuple(piece.key for piece in leaf.pieces)
    return WeightPair(leaf.path, keys, leaf.pieces, leaf.join)
