"""Torch's weights element by element, and the layers that received or returned a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Concat, Stack
from converters.target.elements import Elements
from migrate.parity.align.tensors import TensorArrangement, distance, ways
from migrate.parity.dump.dump import TensorRef
from migrate.parity.fitting.sources import EXACT, NEAR, SourceArray, TorchSources, UnitCall

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fed:
    """Layer of torch that received a value.

    Attributes:
        calls: calls of its units.
        ref: the argument.
        way: arrangement of the value relative to the argument.
        distance: distance of the two.
    """

    calls: Sequence[UnitCall]
    ref: TensorRef
    way: TensorArrangement
    distance: float

    @property
    def sides(self) -> int:
        """Number of features of the argument."""
        return self.ref.shape[-1]

    def features(self, shape: tuple[int, ...], axes: Sequence[int]) -> Array | None:
        """Positions along these axes on the argument's last axis; None if other axes are mixed in."""
        side = self.ref.shape[-1]
        numbers = np.broadcast_to(np.arange(side), self.ref.shape)
        lying = self.way.pair("", "").as_mine(numbers)
        rest = [axis for axis in range(len(shape)) if axis not in axes]
        rows = lying.transpose(*rest, *axes).reshape(-1, math.prod(shape[axis] for axis in axes))
        if not (rows == rows[:1]).all() or len(set(rows[0].tolist())) != rows.shape[1]:
            return None
        return np.asarray(rows[0])


@dataclass(frozen=True)
class InOrder(Fed):
    """Layer whose input is not recorded: its features are taken in order."""

    rows: int = 0

    @property
    def sides(self) -> int:
        """See `Fed`."""
        return self.rows

    def features(self, shape: tuple[int, ...], axes: Sequence[int]) -> Array | None:
        """See `Fed`."""
        return np.arange(self.rows)


class NumberedWeights:
    """Torch's weights, with a number for each element.

    Args:
        sources: torch's layers and weights.

    Attributes:
        sources: the same.
        elements: numbers of the elements.
        values: values of the elements, by number.
    """

    def __init__(self, sources: TorchSources) -> None:
        self.sources = sources
        pieces = [piece for leaf in sources.leaves.values() for piece in leaf.pieces]
        keys = {self._owner(piece.key) for piece in pieces}
        tensors = {key: np.asarray(sources.tensor(key)) for key in sorted(keys)}
        self.elements = Elements(
            {key: TensorInfo(tensor.shape, tensor.dtype.name) for key, tensor in tensors.items()}
        )
        whole = [tensor.astype(np.float64).reshape(-1) for tensor in tensors.values()]
        self.values = np.concatenate([*whole, np.zeros(0)])
        self._numbers: dict[str, Array] = {}

    def numbers(self, source: SourceArray) -> Array | None:
        """Numbers of the elements of a plan's array; None: it is a sum of torch tensors."""
        if source.path not in self._numbers:
            join = source.leaf.join
            if join != ALONE and not isinstance(join, Stack | Concat):
                return None
            self._numbers[source.path] = source.leaf.read(self._of)
        return self._numbers[source.path]

    def _owner(self, key: str) -> str:
        return self.sources.owners.get(key, key)

    def _of(self, key: str) -> Array:
        return self.elements.of(self._owner(key))

    def at(self, numbers: Array, factor: Array, offset: Array) -> Array:
        """Values of the elements with these numbers, times factors plus offsets."""
        return np.asarray(factor * self.values[numbers] + offset)

    def used(self, path: str, marked: Array) -> bool:
        """Whether all elements of an array of the plan are marked."""
        pieces = self.sources.leaves[path].pieces
        return all(bool(marked[self._of(piece.key)].all()) for piece in pieces)

    def fed(self, mine: Array) -> list[Fed]:
        """Layers that received this value, in the order of execution; near matches if none is exact."""
        layers: dict[tuple[str, int], Fed] = {}
        for at, refs in self.sources.alike(mine).items():
            for ref in refs:
                near = self.sources.nearest(ref, mine)
                if near is None or near[1] > NEAR:
                    continue
                if at not in layers or near[1] < layers[at].distance:
                    layers[at] = Fed(self.sources.of_call(at), ref, *near)
        best = min((layer.distance for layer in layers.values()), default=math.inf)
        limit = max(EXACT, 10 * best)
        return [layer for layer in layers.values() if layer.distance <= limit]

    def argument(self, call: UnitCall, mine: Array) -> Fed | None:
        """Argument of a layer that did not receive this value, in the plainest arrangement."""
        for ref in call.call.arguments:
            if math.prod(ref.shape) != mine.size or ("float" in ref.dtype) != (
                mine.dtype.kind == "f"
            ):
                continue
            possible = ways(ref.shape, mine.shape, self.sources.images(mine.size))
            if possible:
                truth = self.sources.values(ref)
                best = min(
                    possible, key=lambda way: distance(way.pair("", "").as_mine(truth), mine)
                )
                units = self.sources.of_call((call.unit.layer, call.call.number))
                return Fed(units, ref, best, math.inf)
        return None
