"""How the tensors of a side lie to the truth's: by shape, and where several ways fit, by the values.

A way is `reshape, transpose, reshape`: channels first or last, batch or time first, heads apart or together,
a batch of one, an image that was flattened in either layout. Between ways that all fit (square tensors) the
relative L2 distance of the values decides, on at most 2^18 elements; where it cannot (the model went wrong
before), what other tensors of as many axes did.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.target.elements import refines
from migrate.parity.dump.dump import Dump, TensorRef
from migrate.parity.ground.alignment import TensorPair
from migrate.parity.judge.metrics import Measurement

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]

ALIKE = 0.3  # relative L2 up to which two tensors are taken for the same
SURE = 1e-2  # and below which no other way is tried
_SAMPLE = 1 << 18
_WAYS = 24
_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Way:
    """As of `TensorPair`."""

    axes: Shape | None = None
    shape: Shape | None = None
    split: Shape | None = None

    def pair(self, mine: str, truth: str) -> TensorPair:
        """Of tensors with these paths."""
        return TensorPair(mine, truth, self.axes, self.shape, self.split)

    @property
    def layout(self) -> tuple[Shape | None, int]:
        """What it has in common with ways of tensors of other sizes."""
        return self.axes, len(self.split or ())


def ways(truth: Shape, mine: Shape, images: Iterable[Shape] = ()) -> list[Way]:
    """The ways in which a tensor of the truth's shape becomes one of the side's, the plainest first.

    Args:
        truth, mine: the shapes.
        images: shapes of tensors that may have been flattened into this one.
    """
    if math.prod(truth) != math.prod(mine):
        return []
    found = itertools.islice(_ways(truth, mine, images), _WAYS)
    return list(dict.fromkeys(found))


def _ways(truth: Shape, mine: Shape, images: Iterable[Shape]) -> Iterator[Way]:
    if truth == mine:
        yield Way()
    elif refines(truth, mine) or refines(mine, truth):
        yield Way(shape=mine)
    if len(truth) <= 5:
        for axes in _moves(truth):
            moved = tuple(truth[axis] for axis in axes)
            if moved == mine:
                yield Way(axes)
            elif len(mine) < len(truth) and refines(moved, mine):
                yield Way(axes, mine)
    if len(truth) < len(mine) <= 5:
        for axes in itertools.permutations(range(len(mine))):
            split = tuple(mine[axes.index(axis)] for axis in range(len(mine)))
            if axes != tuple(sorted(axes)) and refines(split, truth):
                yield Way(axes, None, split)
    for image in images:
        if len(image) in (3, 4, 5) and len(image) > len(mine) and refines(image, truth):
            axes = (0, *range(2, len(image)), 1)
            if refines(tuple(image[axis] for axis in axes), mine):
                yield Way(axes, mine, image)


def _moves(shape: Shape) -> Iterator[Shape]:
    """Orders that move more than axes of one element; channels last and time first before others."""
    rank = len(shape)
    usual = [(0, *range(2, rank), 1), (1, 0, *range(2, rank)), (0, 2, 1, *range(3, rank))]
    orders = [order for order in usual if sorted(order) == list(range(rank))]
    seen = {tuple(axis for axis in range(rank) if shape[axis] > 1)}
    for order in itertools.chain(orders, itertools.permutations(range(rank))):
        moved = tuple(axis for axis in order if shape[axis] > 1)
        if moved not in seen:
            seen.add(moved)
            yield order


@dataclass(frozen=True)
class Found:
    """A way between two tensors, and how far their values then are apart (infinite: nothing is known)."""

    way: Way
    distance: float


class Tensors:
    """Compares tensors of two dumps.

    Args:
        truth, mine: the dumps.
    """

    def __init__(self, truth: Dump, mine: Dump) -> None:
        self._dumps = {True: truth, False: mine}
        self._loaded: OrderedDict[tuple[bool, str, str], Array] = OrderedDict()
        self._found: dict[tuple[str, str, str, str], Found | None] = {}
        self._marks: dict[tuple[bool, str, str], tuple[float, ...]] = {}
        self._votes: Counter[tuple[int, int, Any]] = Counter()
        self._images: dict[int, set[Shape]] = {}
        for call in truth.calls:
            for ref in (*call.arguments, *call.outputs):
                if len(ref.shape) in (3, 4, 5) and call.input == 0:
                    self._images.setdefault(math.prod(ref.shape), set()).add(ref.shape)

    def between(self, truth: TensorRef, mine: TensorRef) -> Found | None:
        """The best way between two tensors; None if they do not fit, or are opposite masks."""
        key = (truth.file, truth.key, mine.file, mine.key)
        if key not in self._found:
            self._found[key] = self._between(truth, mine)
        return self._found[key]

    def values(self, ref: TensorRef, truth: bool) -> Array:
        """Of a tensor of the truth, or of the side."""
        return self._load(truth, ref)

    def unlike(self, truth: TensorRef, mine: TensorRef) -> bool:
        """Whether their values differ in what no layout changes: cheap, and certain where it is true."""
        a, b = self._mark(True, truth), self._mark(False, mine)
        return any(
            abs(x - y) > ALIKE * max(abs(x), abs(y), a[0], 1e-30) for x, y in zip(a, b, strict=True)
        )

    def fits(self, truth: TensorRef, mine: TensorRef) -> bool:
        """Whether there is a way at all."""
        return _floats(truth) == _floats(mine) and bool(ways(truth.shape, mine.shape))

    def _between(self, truth: TensorRef, mine: TensorRef) -> Found | None:
        if _floats(truth) != _floats(mine):
            return None
        images = sorted(self._images.get(math.prod(truth.shape), ()))
        candidates = ways(truth.shape, mine.shape, images)
        if not candidates:
            return None
        t, x = self._load(True, truth), self._load(False, mine)
        found: list[Found] = []
        for way in candidates:
            found.append(Found(way, distance(way.pair("", "").as_mine(t), x)))
            if found[-1].distance <= SURE:
                break
        if any(_opposite(one.way.pair("", "").as_mine(t), x) for one in found):
            return None
        ranks = len(truth.shape), len(mine.shape)
        best = min(found, key=lambda one: one.distance)
        if best.distance <= ALIKE:
            self._votes[(*ranks, best.way.layout)] += 1
            return best
        usual = max(found, key=lambda one: self._votes[(*ranks, one.way.layout)])
        return Found(usual.way, usual.distance)

    def _load(self, truth: bool, ref: TensorRef) -> Array:
        key = (truth, ref.file, ref.key)
        if key not in self._loaded:
            self._loaded[key] = self._dumps[truth].tensor(ref)
            while len(self._loaded) > 2 and self._bytes() > _CACHE_BYTES:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _bytes(self) -> int:
        return sum(array.nbytes for array in self._loaded.values())

    def _mark(self, truth: bool, ref: TensorRef) -> tuple[float, ...]:
        key = (truth, ref.file, ref.key)
        if key not in self._marks:
            values = self._load(truth, ref).astype(np.float64).reshape(-1)
            values = values[np.isfinite(values) & (values > -9e8)]
            size = max(values.size, 1)
            rms = math.sqrt(float(values @ values) / size)
            self._marks[key] = (rms, float(np.abs(values).sum()) / size, float(values.sum()) / size)
        return self._marks[key]


def distance(truth: Array, mine: Array) -> float:
    """Relative L2 on a sample; 0 for two of the same mask; infinite where it is not finite."""
    steps = _steps(mine.shape)
    measured = Measurement("float32")
    measured.add(0, truth[steps], mine[steps])
    found = measured.errors().relative_l2
    return found if math.isfinite(found) else math.inf


def _steps(shape: Shape) -> tuple[slice, ...]:
    steps = [1] * len(shape)
    left = list(shape)
    while math.prod(left) > _SAMPLE:
        axis = left.index(max(left))
        # Odd steps, as what repeats along an axis (heads, channels) often does so by powers of two.
        steps[axis] = steps[axis] * 2 + 1
        left[axis] = -(-shape[axis] // steps[axis])
    return tuple(slice(None, None, step) for step in steps)


def _opposite(truth: Array, mine: Array) -> bool:
    """Whether these are masks that say the opposite: torch's True is often what is *not* allowed.

    Such a mask must not be fed to a layer that reads it otherwise.
    """
    masks = all(one.dtype.kind in "biu" and np.isin(one, (0, 1)).all() for one in (truth, mine))
    return masks and np.array_equal(truth != 0, mine == 0)


def _floats(ref: TensorRef) -> bool:
    return "float" in ref.dtype


def pair_tensors(
    tensors: Tensors, truth: Sequence[TensorRef], mine: Sequence[TensorRef]
) -> tuple[tuple[TensorPair, ...], tuple[str, ...]]:
    """Which tensors of two calls correspond, and what is not certain of it (paths of the side).

    Of all pairs that fit, first those with near values, then those of the same path, then those in the same
    position. A tensor for which others fit too, and whose values are far from all, has no partner if a
    neighbour's are near: then the model did not go wrong before, and it is something else.
    """
    fits: list[tuple[int, int, Found]] = []
    for i, ref in enumerate(mine):
        for j, other in enumerate(truth):
            if (found := tensors.between(other, ref)) is not None:
                fits.append((i, j, found))

    def cost(one: tuple[int, int, Found]) -> tuple[float, bool, int]:
        i, j, found = one
        near = 0 if found.distance <= SURE else 1 if found.distance <= ALIKE else 2
        return near, mine[i].path != truth[j].path, abs(i - j)

    taken: list[tuple[int, int, Found]] = []
    for i, j, found in sorted(fits, key=cost):
        if all(i != one and j != other for one, other, _ in taken):
            taken.append((i, j, found))
    near = any(found.distance <= 0.1 and mine[i].shape for i, _, found in taken)
    pairs, unsure = [], []
    for i, j, found in sorted(taken, key=lambda one: one[0]):
        if found.distance > ALIKE:
            others = sum(one == i or other == j for one, other, _ in fits) > 1
            if near and others and mine[i].path != truth[j].path:
                continue
            if len(ways(truth[j].shape, mine[i].shape)) > 1:
                unsure.append(mine[i].path)
        pairs.append(found.way.pair(mine[i].path, truth[j].path))
    return tuple(pairs), tuple(unsure)
