"""Matching of a torch and a Flax checkpoint of the same weights by their values alone.

Arrays with the same values in any order belong together: the sorted values are compared. The
arrangement of the axes follows from trying the layouts that the shapes allow. No model is needed,
and none is run.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.errors import MisfitError
from converters.layers.join import ALONE, Concat, Grid, Join, Stack
from converters.layers.layout import UNCHANGED, Layout, Part, Permute, chain
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.mapping.module_tree import Outcome, Target
from converters.mapping.plan import Plan, Row
from converters.target.elements import refines, reshaped

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
EVIDENCE = "found by its values"
_PARTS = (2, 3, 4)
_RANK = 6
# Keys of torch that Flax never has.
_COUNTS = re.compile(r"(^|\.)num_batches_tracked$")


@dataclass(frozen=True)
class ByValues:
    """Correspondence of two checkpoints.

    Attributes:
        plan: every torch key and its path.
        alike: groups with equal values, one line each, which are paired in the order of both files.
    """

    plan: Plan
    alike: tuple[str, ...]


@dataclass(frozen=True)
class _TensorSource:
    """Tensor of torch, or an equal part of one."""

    key: str
    part: Part | None


def fit_values(torch: Checkpoint, flax: Checkpoint, drop: Sequence[str] = ()) -> ByValues:
    """Find the torch tensors of each Flax array by their values.

    Args:
        torch, flax: the checkpoints of the same weights. If Flax's have another dtype, torch's are cast.
        drop: regular expressions of torch keys that Flax does not need.

    Raises:
        MisfitError: a tensor or array has no partner; the message names all.
    """
    return _Search(torch, flax, drop).find_plan()


class _Search:
    def __init__(self, torch: Checkpoint, flax: Checkpoint, drop: Sequence[str]) -> None:
        self._torch, self._flax, self._drop = torch, flax, drop
        self._dropped = {
            key: pattern for key in torch.infos for pattern in drop if re.search(pattern, key)
        }
        self._keys = [
            key for key in torch.infos if key not in self._dropped and not _COUNTS.search(key)
        ]
        self._pools: dict[tuple[str, bool], dict[str, list[_TensorSource]]] = {}
        self._shared = [frozenset(keys) for keys in torch.shared]
        self._alike: list[str] = []
        self._leaves: dict[str, PlannedLeaf] = {}

    def find_plan(self) -> ByValues:
        """Return the plan."""
        groups: dict[tuple[str, Shape], list[str]] = defaultdict(list)
        for path, info in self._flax.infos.items():
            groups[_mark(self._flax.read(path)), info.shape].append(path)
        for paths in groups.values():
            self._whole(paths)
        for path in self._flax.infos:
            if path not in self._leaves:
                leaf = self._joined(path) or self._of_part(path)
                if leaf is not None:
                    self._leaves[path] = leaf
        return ByValues(self._plan(), tuple(self._alike))

    def _whole(self, paths: Sequence[str]) -> None:
        """Match arrays of one set of values, each with one tensor."""
        array = self._flax.read(paths[0])
        fitting: dict[str, list[Layout]] = {}
        for source in self._pool(array, parts=False).get(_mark(array), ()):
            layouts = _layouts_between(self._read(source, array), array)
            if layouts and not any(
                {source.key, other} <= set(keys) for keys in self._shared for other in fitting
            ):
                fitting[source.key] = layouts
        if not fitting:
            return
        several = len(fitting) > 1 or len(next(iter(fitting.values()))) > 1
        if several and array.size:
            kind = "one number throughout" if (array == array.flat[0]).all() else "the same values"
            self._alike.append(f"{kind}: {', '.join([*fitting][:3])} and {', '.join(paths[:3])}")
        places = list(fitting.items())
        for number, path in enumerate(paths):
            key, layouts = places[min(number, len(places) - 1)]
            self._leaves[path] = self._leaf(path, [Piece(key, layouts[0])], ALONE)

    def _joined(self, path: str) -> PlannedLeaf | None:
        """Return an array made of several tensors: stacked, concatenated, or along two new axes."""
        array = self._flax.read(path)
        for axis, side in enumerate(array.shape):
            if side > 1 and array.ndim > 1:
                pieces = self._pieces(np.moveaxis(array, axis, 0))
                if pieces is not None:
                    return self._leaf(path, pieces, Stack(axis))
        for axis in range(array.ndim - 2):
            sides = array.shape[axis : axis + 2]
            merged = array.reshape((*array.shape[:axis], -1, *array.shape[axis + 2 :]))
            pieces = self._pieces(np.moveaxis(merged, axis, 0))
            if pieces is not None:
                return self._leaf(path, pieces, Grid(axis, sides))
        for axis, side in enumerate(array.shape):
            for count in _PARTS:
                if side % count == 0 and side > count:
                    pieces = self._pieces(np.split(array, count, axis))
                    if pieces is not None:
                        return self._leaf(path, pieces, Concat(axis))
        return None

    def _of_part(self, path: str) -> PlannedLeaf | None:
        """Return an array that is a part of a tensor: the query of a fused attention."""
        array = self._flax.read(path)
        for source in self._pool(array, parts=True).get(_mark(array), ()):
            layouts = _layouts_between(self._read(source, array), array)
            if layouts:
                return self._leaf(path, [Piece(source.key, layouts[0], source.part)], ALONE)
        return None

    def _pieces(self, arrays: Sequence[Array] | Array) -> list[Piece] | None:
        pieces: list[Piece] = []
        for array in arrays:
            pool = self._pool(array, parts=False)
            used = {piece.key for piece in pieces}
            sources = [source for source in pool.get(_mark(array), ()) if source.key not in used]
            fitting = [
                Piece(source.key, layouts[0])
                for source in sources
                if (layouts := _layouts_between(self._read(source, array), array))
            ]
            if not fitting:
                return None
            if len(fitting) > 1:
                self._alike.append(
                    f"the same values: {', '.join(piece.key for piece in fitting[:3])}"
                )
            pieces.append(fitting[0])
        return pieces

    def _pool(self, array: Array, *, parts: bool) -> Mapping[str, list[_TensorSource]]:
        """Return mark of the sorted values → torch tensors, or their parts, cast to this array's dtype."""
        at = array.dtype.name, parts
        if at not in self._pools:
            pool: dict[str, list[_TensorSource]] = defaultdict(list)
            for key in self._keys:
                for source in self._parts(key) if parts else (_TensorSource(key, None),):
                    pool[_mark(self._read(source, array))].append(source)
            self._pools[at] = pool
        return self._pools[at]

    def _parts(self, key: str) -> Iterator[_TensorSource]:
        shape = self._torch.infos[key].shape
        for axis, side in enumerate(shape):
            for count in _PARTS:
                if side % count == 0:
                    each = side // count
                    for number in range(count):
                        yield _TensorSource(key, Part(axis, number * each, (number + 1) * each))

    def _read(self, source: _TensorSource, like: Array) -> Array:
        tensor = self._torch.read(source.key)
        part = tensor if source.part is None else source.part.apply(tensor)
        return np.asarray(part).astype(like.dtype)

    def _leaf(self, path: str, pieces: Sequence[Piece], join: Join) -> PlannedLeaf:
        dtype = self._torch.infos[pieces[0].key].dtype
        return PlannedLeaf(
            path, TensorInfo(self._flax.infos[path].shape, dtype), tuple(pieces), join
        )

    def _plan(self) -> Plan:
        places: dict[str, list[Target]] = defaultdict(list)
        for path, leaf in self._leaves.items():
            for index, piece in enumerate(leaf.pieces):
                target = Target(path, piece.layout, piece.part, leaf.join, index)
                places[piece.key].append(target)
        shared: dict[tuple[str, Shape], str] = {}
        for key in places:
            shared[_mark(self._torch.read(key)), self._torch.infos[key].shape] = key
        rows = [self._row(key, info, places, shared) for key, info in self._torch.infos.items()]
        problems = [
            f"missing: nothing of torch's has the values of {path} {info.shape}"
            for path, info in self._flax.infos.items()
            if path not in self._leaves
        ]
        problems += [
            f"extra: nothing in {self._flax.source} has the values of {row.key} {row.shape}"
            for row in rows
            if row.outcome is Outcome.REFUSED or not self._is_covered(row)
        ]
        if problems:
            raise MisfitError(
                f"{self._torch.source} and {self._flax.source} do not hold the same weights",
                problems,
                "pass checkpoints of the same weights, or drop keys that the other does not use (--drop)",
            )
        return Plan(self._torch.source, tuple(rows), tuple(self._leaves.values()))

    def _row(
        self,
        key: str,
        info: TensorInfo,
        places: Mapping[str, Sequence[Target]],
        shared: Mapping[tuple[str, Shape], str],
    ) -> Row:
        row = Row(key, info.shape, info.dtype, Outcome.REFUSED, kind="Parameter")
        if key in places:
            targets = tuple(places[key])
            return replace(row, outcome=Outcome.MAPPED, targets=targets, evidence=EVIDENCE)
        if key in self._dropped or _COUNTS.search(key):
            pattern = self._dropped.get(key)
            note = (
                f"dropped by the user ({pattern})"
                if pattern
                else "a count of batches: Flax has none"
            )
            return replace(row, outcome=Outcome.DROPPED, note=note)
        owner = shared.get((_mark(self._torch.read(key)), info.shape))
        if owner is None or not np.array_equal(self._torch.read(key), self._torch.read(owner)):
            return row
        if not any({key, owner} <= keys for keys in self._shared):
            self._alike.append(f"the same values: {key} is taken for tied to {owner}")
        targets = tuple(places[owner])
        return replace(
            row, outcome=Outcome.TIED, targets=targets, note=f"tied to {owner}", evidence=EVIDENCE
        )

    def _is_covered(self, row: Row) -> bool:
        """Whether a tensor is completely covered."""
        if row.outcome is not Outcome.MAPPED or any(target.part is None for target in row.targets):
            return True
        sides = sum(
            target.part.stop - target.part.start
            for target in row.targets
            if target.part is not None
        )
        axis = next(target.part.axis for target in row.targets if target.part is not None)
        return row.shape is not None and sides == row.shape[axis]


def _mark(array: Array) -> str:
    """Return a mark that is equal for arrays of the same values in any order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    values = flat if flat.dtype.kind in "biuf" else flat.astype(np.float64)
    return hashlib.sha256(f"{array.dtype}".encode() + np.sort(values).tobytes()).hexdigest()


def _layouts_between(tensor: Array, array: Array) -> list[Layout]:
    """Return the layouts that turn the tensor into the array; for a constant array only the simplest."""
    layouts: list[Layout] = []
    seen: list[Array] = []
    for layout in arrangements(tensor.shape, array.shape):
        result = layout.apply(tensor)
        if np.array_equal(result, array, equal_nan=array.dtype.kind == "f"):
            if array.size and (array == array.flat[0]).all():
                return [layout]
            numbers = layout.apply(np.arange(tensor.size).reshape(tensor.shape))
            if not any(np.array_equal(numbers, other) for other in seen):
                layouts.append(layout)
                seen.append(numbers)
    return layouts


def arrangements(shape: Shape, wanted: Shape) -> Iterator[Layout]:
    """Yield ways from one shape to another: axes permuted, split or merged as the sides allow."""
    if math.prod(shape) != math.prod(wanted) or max(len(shape), len(wanted)) > _RANK:
        return
    for axes in itertools.permutations(range(len(shape))):
        moved = tuple(shape[axis] for axis in axes)
        if refines(moved, wanted):
            yield chain((_turn(axes), reshaped(moved, wanted)))
    for axes in itertools.permutations(range(len(wanted))):
        apart = tuple(wanted[axis] for axis in axes)
        if refines(apart, shape):
            back = tuple(axes.index(axis) for axis in range(len(axes)))
            yield chain((reshaped(shape, apart), _turn(back)))


def _turn(axes: tuple[int, ...]) -> Layout:
    return UNCHANGED if axes == tuple(range(len(axes))) else Permute(axes)
