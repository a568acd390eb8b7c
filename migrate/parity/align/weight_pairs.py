"""Which weights of a side are which of the truth's, so that their gradients can be laid beside each other."""

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
    """A weight of a side and those of the truth that it is made from.

    Attributes:
        name: the side's.
        truths: the truth's, in the order of the pieces; one may come twice.
        pieces: how each of them lies in the side's; empty: the one is as it is.
        join: how the pieces are put together.
    """

    name: str
    truths: tuple[str, ...]
    pieces: tuple[Piece, ...] = ()
    join: Join = ALONE

    @property
    def comparable(self) -> bool:
        """Whether its gradient tells the truth's: not where it was computed from them (weight norm)."""
        return self.join == ALONE or isinstance(self.join, Stack | Concat | Sum)

    def beside(
        self, mine: Array, truth: Callable[[str], Array]
    ) -> Iterator[tuple[str, Array, Array]]:
        """The parts of the side's gradient with those of the truth's that belong to them.

        What moves elements moves their gradients likewise. Torch adds the two biases of an LSTM's gate and
        Flax keeps their sum: each of the two has the sum's gradient.

        Args:
            mine: the side's gradient.
            truth: name → the truth's gradient.

        Yields:
            The truth's name, its part in the side's arrangement, the side's part.

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
        for piece, one, part in zip(self.pieces, taken, parts or (), strict=True):
            yield piece.key, one, part


def paired_weights(weights: WeightMap) -> tuple[WeightPair, ...]:
    """Of the weights that were brought from the truth to a side."""
    leaves = {leaf.path: leaf for leaf in weights.leaves}
    return tuple(
        _of_leaf(leaves[name]) if name in leaves else WeightPair(name, truths)
        for name, truths in weights.names.items()
    )


def _of_leaf(leaf: PlannedLeaf) -> WeightPair:
    keys = tuple(piece.key for piece in leaf.pieces)
    return WeightPair(leaf.path, keys, leaf.pieces, leaf.join)
