"""Restoring of torch tensors from the arrays of a pytree, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from converters.back.inverted import inverted
from converters.checkpoint.cast import FLOATING, cast
from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.pytree import PytreeLeaf
from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.errors import MisfitError
from converters.kept import Kept, KeptKey, computed_name, is_undoable
from converters.layers.join import ALONE, SUM, ComputedBefore
from converters.layers.reparametrized import ComputedWeight
from converters.mapping.leaves import PlannedLeaf, keys_of
from converters.output.units import leaves_of

Array = np.ndarray[Any, Any]


class Origin(StrEnum):
    """Source of a restored tensor's values."""

    ARRAYS = "arrays"
    KEPT = "kept"
    TIED = "tied"
    DIVIDED = "divided"


@dataclass(frozen=True)
class RestoredRow:
    """Key of the restored state dict.

    Attributes:
        key: its name, prefixes included.
        info: its shape and dtype.
        origin: the arrays of the pytree, the file beside it, another key (tied), or a changed array
            that does not determine its torch tensors.
        note: a note for the user, or "".
    """

    key: str
    info: TensorInfo
    origin: Origin
    note: str = ""


class Restoring:
    """Keys of a state dict, restored on demand.

    Args:
        kept: the keys, and the data that the arrays do not contain.
        arrays: the pytree.
        original_dtype: whether to cast arrays of another dtype back to torch's.

    Raises:
        MisfitError: a tensor cannot be restored; the message names all of them.
    """

    def __init__(self, kept: Kept, arrays: Checkpoint, *, original_dtype: bool = False) -> None:
        self._kept = kept
        self._arrays = arrays
        self._original_dtype = original_dtype
        self._infos = {key.key: key.info for key in kept.keys}
        self._made_of = keys_of(kept.leaves)
        undetermined = [leaf for leaf in kept.leaves if not is_undoable(leaf, self._infos)]
        self._undetermined = {leaf.path for leaf in undetermined}
        self._changed = {leaf.path for leaf in undetermined if not self._is_as_kept(leaf)}
        self.rows = self._rows()

    def read(self, key: KeptKey) -> Array:
        """Return the tensor of a key, in the dtype of its row."""
        return self._read(key.tied or key.key)

    def leaves(self) -> list[PytreeLeaf]:
        """Return every key as a leaf with its torch name, written piece by piece if possible."""
        return [self._leaf(key, row) for key, row in zip(self._kept.keys, self.rows, strict=True)]

    def _leaf(self, key: KeptKey, row: RestoredRow) -> PytreeLeaf:
        owner = key.tied or key.key
        made_of = self._made_of.get(owner, [])
        settled = made_of and not any(leaf.path in self._undetermined for leaf in made_of)
        if settled and owner not in self._kept.tensors:
            planned = inverted(owner, row.info, made_of, self._infos)
            if planned is not None:
                (leaf,) = leaves_of([planned], self._arrays, cast=True)
                return replace(leaf, path=row.key)
        return PytreeLeaf(row.key, row.info, partial(self.read, key))

    def _read(self, key: str) -> Array:
        leaves = self._made_of.get(key, [])
        if not leaves:
            return self._kept.tensors[key]
        wanted = numpy_dtype(self._dtype(key), key)
        first = leaves[0]
        alone = len(leaves) == 1 and len(first.pieces) == 1 and first.join == ALONE
        if alone and first.pieces[0].part is None:
            array = first.pieces[0].layout.inverse.apply(self._arrays.read(first.path))
            return cast_to(np.asarray(array), wanted)
        kept = self._kept.tensors.get(key)
        shape = self._infos[key].shape
        tensor = np.empty(shape, wanted) if kept is None else np.array(cast_to(kept, wanted))
        for leaf in leaves:
            for piece, value in zip(leaf.pieces, self._pieces(leaf), strict=True):
                if piece.key == key and value is not None:
                    piece.put(cast_to(value, wanted), tensor)
        return tensor

    def _pieces(self, leaf: PlannedLeaf) -> list[Array | None]:
        """Return the pieces of an array; None for each piece equal to the kept one."""
        if leaf.path in self._undetermined and leaf.path not in self._changed:
            return [None] * len(leaf.pieces)
        array = self._arrays.read(leaf.path)
        if leaf.path in self._changed:
            # torch adds them up: putting the whole sum in the first makes it exact.
            return [array, *(np.zeros_like(array) for _ in leaf.pieces[1:])]
        shapes = [piece.shape(self._infos[piece.key].shape) for piece in leaf.pieces]
        pieces = leaf.join.split(array, shapes)
        assert pieces is not None
        return list(pieces)

    def _is_as_kept(self, leaf: PlannedLeaf) -> bool:
        """Whether the array is still the result of the kept tensors."""
        tensors = self._kept.tensors
        if any(piece.key not in tensors for piece in leaf.pieces):
            return False
        array = self._arrays.read(leaf.path)
        if isinstance(leaf.join, ComputedWeight | ComputedBefore):
            written = tensors.get(computed_name(leaf.path))
            return written is not None and _same(cast_to(written, array.dtype), array)
        exact = leaf.read(lambda key: tensors[key])
        # A cast may have been applied before or after the join.
        before = leaf.join.apply(
            [cast_to(piece.take(tensors[piece.key]), array.dtype) for piece in leaf.pieces]
        )
        return _same(cast_to(exact, array.dtype), array) or _same(before, array)

    def _dtype(self, key: str) -> str:
        """Return the dtype of a key's tensor."""
        original = self._infos[key].dtype
        leaves = self._made_of.get(key, [])
        dtypes = {self._arrays.infos[leaf.path].dtype for leaf in leaves}
        if self._original_dtype or len(dtypes) != 1 or key in self._kept.tensors:
            return original
        return dtypes.pop()

    def _rows(self) -> tuple[RestoredRow, ...]:
        problems: list[str] = []
        rows = []
        for key in self._kept.keys:
            owner = key.tied or key.key
            info = TensorInfo(key.info.shape, self._dtype(owner))
            origin, note = self._origin(owner, problems)
            if key.tied:
                origin, note = Origin.TIED, f"tied to {key.tied}"
            rows.append(
                RestoredRow(key.stored, info, origin, "; ".join(filter(None, (key.note, note))))
            )
        if problems:
            raise MisfitError(
                f"{self._arrays.source}: not every tensor can be restored",
                problems,
                "convert the checkpoint again with this program, so that a file is kept beside",
            )
        return tuple(rows)

    def _origin(self, key: str, problems: list[str]) -> tuple[Origin, str]:
        leaves = self._made_of.get(key, [])
        if not leaves:
            return Origin.KEPT, ""
        notes = []
        origin = Origin.ARRAYS
        changed = [leaf for leaf in leaves if leaf.path in self._changed]
        if changed:
            origin = Origin.DIVIDED
            notes.append(_divided(key, changed))
            if any(leaf.join != SUM for leaf in changed):
                paths = ", ".join(leaf.path for leaf in changed)
                problems.append(f"{key}: {paths} was changed, and does not say what it is made of")
        elif any(leaf.path in self._undetermined for leaf in leaves):
            origin = Origin.KEPT
        elif key not in self._kept.tensors and self._filled(key) != self._infos[key].size:
            problems.append(f"{key}: the arrays hold only a part of it")
        original, dtypes = self._infos[key].dtype, self._array_dtypes(leaves)
        if dtypes != {original} and origin is not Origin.KEPT:
            dtype = self._dtype(key)
            as_what = "given in" if dtype == original else "not"
            cast = ", ".join(sorted(dtypes - {original}))
            notes.append(f"the values are those of {cast}, {as_what} the original {original}")
        return origin, "; ".join(notes)

    def _array_dtypes(self, leaves: list[PlannedLeaf]) -> set[str]:
        return {self._arrays.infos[leaf.path].dtype for leaf in leaves}

    def _filled(self, key: str) -> int:
        shape = self._infos[key].shape
        pieces = [piece for leaf in self._made_of[key] for piece in leaf.pieces]
        return sum(
            TensorInfo(piece.shape(shape), "bool").size for piece in pieces if piece.key == key
        )


def cast_to(array: Array, wanted: np.dtype[Any]) -> Array:
    """Return the array in this dtype, rounded like a conversion; the array itself if it already has it."""
    if array.dtype == wanted:
        return array
    done = cast(array, wanted.name) if wanted.name in FLOATING else array
    return done if done.dtype == wanted else done.astype(wanted)


def _divided(key: str, changed: list[PlannedLeaf]) -> str:
    paths = ", ".join(leaf.path for leaf in changed)
    if all(leaf.pieces[0].key == key for leaf in changed):
        others = dict.fromkeys(piece.key for leaf in changed for piece in leaf.pieces[1:])
        return f"all of {paths}, which is the sum of it and {', '.join(others)}"
    return f"zero: {paths}, the sum with it, is all in {changed[0].pieces[0].key}"


def _same(first: Array, other: Array) -> bool:
    """Whether two arrays are bitwise equal."""
    return first.shape == other.shape and (
        np.ascontiguousarray(first).reshape(-1).view(np.uint8).tobytes()
        == np.ascontiguousarray(other).reshape(-1).view(np.uint8).tobytes()
    )


def total(rows: tuple[RestoredRow, ...]) -> Mapping[str, int]:
    """Return origin → number of rows, for every origin."""
    return {origin.value: sum(1 for row in rows if row.origin is origin) for origin in Origin}
