"""Torch's weights element by element, and which of its layers were given, or gave, a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.checkpoint.reader import TensorInfo
from converters.layers.join import ALONE, Concat, Stack
from converters.target.elements import Elements
from migrate.parity.align.tensors import Way, distance, ways
from migrate.parity.dump.dump import TensorRef
from migrate.parity.fitting.sources import EXACT, NEAR, Source, Sources, UnitCall

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fed:
    """A layer of torch that was given a value.

    Attributes:
        calls: of its units.
        ref: the argument.
        way: how the value lies to it.
        distance: how far they are apart.
    """

    calls: Sequence[UnitCall]
    ref: TensorRef
    way: Way
    distance: float

    @property
    def sides(self) -> int:
        """How many features the argument has."""
        return self.ref.shape[-1]

    def features(self, shape: tuple[int, ...], axes: Sequence[int]) -> Array | None:
        """Along these axes the places on the argument's last one; None if others are mixed in."""
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
    """A layer of which it is not recorded what it was given: its features are taken as they come."""

    rows: int = 0

    @property
    def sides(self) -> int:
        """See `Fed`."""
        return self.rows

    def features(self, shape: tuple[int, ...], axes: Sequence[int]) -> Array | None:
        """See `Fed`."""
        return np.arange(self.rows)


class Weights:
    """Torch's side, of which each element has a number.

    Args:
        sources: torch's side.

    Attributes:
        sources: the same.
        elements: the numbers.
        values: of the elements, by number.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        pieces = [piece for leaf in sources.leaves.values() for piece in leaf.pieces]
        keys = {self._owner(piece.key) for piece in pieces}
        tensors = {key: np.asarray(sources.tensor(key)) for key in sorted(keys)}
        self.elements = Elements(
            {key: TensorInfo(one.shape, one.dtype.name) for key, one in tensors.items()}
        )
        whole = [one.astype(np.float64).reshape(-1) for one in tensors.values()]
        self.values = np.concatenate([*whole, np.zeros(0)])
        self._numbers: dict[str, Array] = {}

    def numbers(self, source: Source) -> Array | None:
        """Of an array of the plan, as it lies there; None: torch's tensors are added up in it."""
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
        """The elements of these numbers, each times one number and another one added."""
        return np.asarray(factor * self.values[numbers] + offset)

    def used(self, path: str, marked: Array) -> bool:
        """Whether all elements of an array of the plan are marked."""
        pieces = self.sources.leaves[path].pieces
        return all(bool(marked[self._of(piece.key)].all()) for piece in pieces)

    def fed(self, mine: Array) -> list[Fed]:
        """The layers that were given this, in the order of execution; near ones if none is exact."""
        found: dict[tuple[str, int], Fed] = {}
        for at, refs in self.sources.alike(mine).items():
            for ref in refs:
                near = self.sources.nearest(ref, mine)
                if near is None or near[1] > NEAR:
                    continue
                if at not in found or near[1] < found[at].distance:
                    found[at] = Fed(self.sources.of_call(at), ref, *near)
        best = min((one.distance for one in found.values()), default=math.inf)
        limit = max(EXACT, 10 * best)
        return [one for one in found.values() if one.distance <= limit]

    def argument(self, call: UnitCall, mine: Array) -> Fed | None:
        """What a layer was given where it is not this: the plainest way for it to lie so."""
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
