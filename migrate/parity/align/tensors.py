"""Layout of a side's tensors relative to the truth's: by shape, and by values where several layouts fit.

An arrangement is `reshape, transpose, reshape`: channels first or last, batch or time first, heads apart or
together, a batch of one, an image that was flattened in either layout.

If several arrangements fit (square tensors), the relative L2 distance of the values decides, on at most 2^18
elements. If the values cannot decide (the models diverged before), other tensors with as many axes do.
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

ALIKE = 0.3  # relative L2 up to which two tensors count as the same
SURE = 1e-2  # relative L2 below which no other arrangement is tried
_SAMPLE = 1 << 18
_WAYS = 24
_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class TensorArrangement:
    """Arrangement of a tensor, with the attributes of `TensorPair`."""

    axes: Shape | None = None
    shape: Shape | None = None
    split: Shape | None = None

    def pair(self, mine: str, truth: str) -> TensorPair:
        """Pair two tensors with these paths."""
        return TensorPair(mine, truth, self.axes, self.shape, self.split)

    @property
    def layout(self) -> tuple[Shape | None, int]:
        """Layout in a form that tensors of other sizes can share."""
        return self.axes, len(self.split or ())


def ways(truth: Shape, mine: Shape, images: Iterable[Shape] = ()) -> list[TensorArrangement]:
    """Arrangements that turn the truth's shape into the side's, the plainest first.

    Args:
        truth, mine: the shapes.
        images: shapes of tensors that may have been flattened into this one.
    """
    if math.prod(truth) != math.prod(mine):
        return []
    arrangements = itertools.islice(_ways(truth, mine, images), _WAYS)
    return list(dict.fromkeys(arrangements))


def _ways(truth: Shape, mine: Shape, images: Iterable[Shape]) -> Iterator[TensorArrangement]:
    if truth == mine:
        yield TensorArrangement()
    elif refines(truth, mine) or refines(mine, truth):
        yield TensorArrangement(shape=mine)
    if len(truth) <= 5:
        for axes in _moves(truth):
            moved = tuple(truth[axis] for axis in axes)
            if moved == mine:
                yield TensorArrangement(axes)
            elif len(mine) < len(truth) and refines(moved, mine):
                yield TensorArrangement(axes, mine)
    if len(truth) < len(mine) <= 5:
        for axes in itertools.permutations(range(len(mine))):
            split = tuple(mine[axes.index(axis)] for axis in range(len(mine)))
            if axes != tuple(sorted(axes)) and refines(split, truth):
                yield TensorArrangement(axes, None, split)
    for image in images:
        if len(image) in (3, 4, 5) and len(image) > len(mine) and refines(image, truth):
            axes = (0, *range(2, len(image)), 1)
            if refines(tuple(image[axis] for axis in axes), mine):
                yield TensorArrangement(axes, mine, image)


def _moves(shape: Shape) -> Iterator[Shape]:
    """Yield axis orders that change the layout; channels last and time first come before others.

    Axes of one element do not count.
    """
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
class ArrangementMatch:
    """Arrangement between two tensors, and the distance of their values (infinite: unknown)."""

    way: TensorArrangement
    distance: float


class Tensors:
    """Comparison of the tensors of two dumps.

    Args:
        truth, mine: the dumps.
    """

    def __init__(self, truth: Dump, mine: Dump) -> None:
        self._dumps = {True: truth, False: mine}
        self._loaded: OrderedDict[tuple[bool, str, str], Array] = OrderedDict()
        self._found: dict[tuple[str, str, str, str], ArrangementMatch | None] = {}
        self._marks: dict[tuple[bool, str, str], tuple[float, ...]] = {}
        self._votes: Counter[tuple[int, int, Any]] = Counter()
        self._images: dict[int, set[Shape]] = {}
        for call in truth.calls:
            for ref in (*call.arguments, *call.outputs):
                if len(ref.shape) in (3, 4, 5) and call.input == 0:
                    self._images.setdefault(math.prod(ref.shape), set()).add(ref.shape)

    def between(self, truth: TensorRef, mine: TensorRef) -> ArrangementMatch | None:
        """Best arrangement between two tensors; None if they do not fit, or are opposite masks."""
        key = (truth.file, truth.key, mine.file, mine.key)
        if key not in self._found:
            self._found[key] = self._between(truth, mine)
        return self._found[key]

    def values(self, ref: TensorRef, truth: bool) -> Array:
        """Values of a tensor of the truth, or of the side."""
        return self._load(truth, ref)

    def unlike(self, truth: TensorRef, mine: TensorRef) -> bool:
        """Whether the values differ in what no layout changes. The test is cheap, and True is certain."""
        a, b = self._mark(True, truth), self._mark(False, mine)
        return any(
            abs(x - y) > ALIKE * max(abs(x), abs(y), a[0], 1e-30) for x, y in zip(a, b, strict=True)
        )

    def fits(self, truth: TensorRef, mine: TensorRef) -> bool:
        """Whether any arrangement fits."""
        return _floats(truth) == _floats(mine) and bool(ways(truth.shape, mine.shape))

    def _between(self, truth: TensorRef, mine: TensorRef) -> ArrangementMatch | None:
        if _floats(truth) != _floats(mine):
            return None
        images = sorted(self._images.get(math.prod(truth.shape), ()))
        candidates = ways(truth.shape, mine.shape, images)
        if not candidates:
            return None
        t, x = self._load(True, truth), self._load(False, mine)
        matches: list[ArrangementMatch] = []
        for way in candidates:
            matches.append(ArrangementMatch(way, distance(way.pair("", "").as_mine(t), x)))
            if matches[-1].distance <= SURE:
                break
        if any(_opposite(match.way.pair("", "").as_mine(t), x) for match in matches):
            return None
        ranks = len(truth.shape), len(mine.shape)
        best = min(matches, key=lambda match: match.distance)
        if best.distance <= ALIKE:
            self._votes[(*ranks, best.way.layout)] += 1
            return best
        usual = max(matches, key=lambda match: self._votes[(*ranks, match.way.layout)])
        return ArrangementMatch(usual.way, usual.distance)

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
    """Relative L2 on a sample; 0 for two equal masks; infinite where it is not finite."""
    steps = _steps(mine.shape)
    measured = Measurement("float32")
    measured.add(0, truth[steps], mine[steps])
    relative = measured.errors().relative_l2
    return relative if math.isfinite(relative) else math.inf


def _steps(shape: Shape) -> tuple[slice, ...]:
    steps = [1] * len(shape)
    left = list(shape)
    while math.prod(left) > _SAMPLE:
        axis = left.index(max(left))
        # Odd steps: what repeats along an axis (heads, channels) often repeats by powers of two.
        steps[axis] = steps[axis] * 2 + 1
        left[axis] = -(-shape[axis] // steps[axis])
    return tuple(slice(None, None, step) for step in steps)


def _opposite(truth: Array, mine: Array) -> bool:
    """Whether two masks are opposite: True in torch often marks what is *not* allowed.

    Such a mask must not be fed to a layer that reads it the other way.
    """
    masks = all(mask.dtype.kind in "biu" and np.isin(mask, (0, 1)).all() for mask in (truth, mine))
    return masks and np.array_equal(truth != 0, mine == 0)


def _floats(ref: TensorRef) -> bool:
    return "float" in ref.dtype


def pair_tensors(
    tensors: Tensors, truth: Sequence[TensorRef], mine: Sequence[TensorRef]
) -> tuple[tuple[TensorPair, ...], tuple[str, ...]]:
    """Pair the tensors of two calls; also return the side's paths whose arrangement is uncertain.

    Pairs are chosen among all that fit: first by near values, then by path, then by position.

    A tensor stays without a partner if others fit too, its values are far from all of them, and a neighbor's
    values are near. The model had not diverged then, so the tensor must be something else.
    """
    fits: list[tuple[int, int, ArrangementMatch]] = []
    for i, ref in enumerate(mine):
        for j, other in enumerate(truth):
            if (match := tensors.between(other, ref)) is not None:
                fits.append((i, j, match))

    def cost(fit: tuple[int, int, ArrangementMatch]) -> tuple[float, bool, int]:
        i, j, match = fit
        near = 0 if match.distance <= SURE else 1 if match.distance <= ALIKE else 2
        return near, mine[i].path != truth[j].path, abs(i - j)

    taken: list[tuple[int, int, ArrangementMatch]] = []
    for i, j, match in sorted(fits, key=cost):
        if all(i != i_taken and j != other for i_taken, other, _ in taken):
            taken.append((i, j, match))
    near = any(match.distance <= 0.1 and mine[i].shape for i, _, match in taken)
    pairs, unsure = [], []
    for i, j, match in sorted(taken, key=lambda fit: fit[0]):
        if match.distance > ALIKE:
            others = sum(i_fitting == i or other == j for i_fitting, other, _ in fits) > 1
            if near and others and mine[i].path != truth[j].path:
                continue
            if len(ways(truth[j].shape, mine[i].shape)) > 1:
                unsure.append(mine[i].path)
        pairs.append(match.way.pair(mine[i].path, truth[j].path))
    return tuple(pairs), tuple(unsure)
