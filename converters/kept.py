"""Data that a pytree cannot contain, in a small file beside it: `NAME.torch.safetensors`.

    net.flax.safetensors        the pytree
    net.flax.torch.safetensors  what the way back to torch needs besides

Its metadata list every key of the checkpoint in order, under the name in the file, with shape,
dtype and ties. They also list the arrays of the pytree with their pieces, in the text forms of
`converters.layers.text`. Its tensors are those that are in no array (`num_batches_tracked`), or
that an array does not determine: two biases that Flax keeps as their sum, the inputs of a computed
weight, and the weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from converters.atomic import sync_folder
from converters.back.safetensors_output import TensorEntry, safetensors_bytes, write_safetensors
from converters.checkpoint.formats.safetensors_file import SafetensorsFile
from converters.checkpoint.reader import Checkpoint, TensorInfo
from converters.checkpoint.source import RemoteSource, Source
from converters.errors import ConversionError, KeptFileError, OutputError
from converters.layers.reparametrized import ComputedWeight
from converters.layers.text import parse_join, parse_layout, parse_part
from converters.mapping.leaves import Piece, PlannedLeaf, keys_of
from converters.mapping.module_tree import Outcome
from converters.mapping.paths import Api
from converters.mapping.plan import Plan
from converters.remote.store import StoreSource
from converters.remote.writing import Objects

VERSION = 1
SUFFIX = ".torch.safetensors"
_FORMAT = "converters.kept"
_OUTPUT_SUFFIXES = (".safetensors", ".msgpack", ".orbax")
_AGAIN = "convert the checkpoint again, or pass the model instead"
Array = np.ndarray[Any, Any]
_AnyPlace = TypeVar("_AnyPlace", bound=Source)


@dataclass(frozen=True)
class KeptKey:
    """Key of the torch checkpoint.

    Attributes:
        key: its name in the plan.
        stored: its name in the file, prefixes included ("module.dense.weight").
        info: its shape and dtype in torch.
        tied: the plan's name of the tensor that it shares, or "".
        note: a note for restoring it, or "".
    """

    key: str
    stored: str
    info: TensorInfo
    tied: str = ""
    note: str = ""


@dataclass(frozen=True)
class Kept:
    """Data for the way back that the arrays do not contain.

    Attributes:
        source: the owner of the keys in messages: the checkpoint or the model.
        api: whose names the paths are made of.
        keys: the keys of the state dict, in order.
        leaves: the arrays of the pytree.
        tensors: the values that no array determines, by plan key.
        notes: other notes, one line each (keys of the model that cannot be restored).
    """

    source: str
    api: Api
    keys: tuple[KeptKey, ...]
    leaves: tuple[PlannedLeaf, ...]
    tensors: Mapping[str, Array]
    notes: tuple[str, ...] = field(default=())


def kept_path(output: _AnyPlace) -> _AnyPlace:
    """Return the path of the file beside an output: `net.flax.torch.safetensors` beside
    `net.flax.msgpack`."""
    name = output.name
    for suffix in _OUTPUT_SUFFIXES:
        name = name.removesuffix(suffix)
    return output.with_name(name + SUFFIX)  # type: ignore[return-value]


def kept_keys(plan: Plan) -> tuple[str, ...]:
    """Return the keys whose values must be in the file beside the output, in the plan's order."""
    made_of = keys_of(plan.leaves)
    infos = _infos(plan)
    determined = {leaf.path: is_undoable(leaf, infos) for leaf in plan.leaves}
    return tuple(
        row.key
        for row in plan.rows
        if row.shape is not None
        and (
            row.outcome is Outcome.DROPPED
            or (
                row.outcome is Outcome.MAPPED
                and not _is_determined(row.key, infos, made_of.get(row.key, []), determined)
            )
        )
    )


@contextmanager
def writing_kept(
    output: Source,
    plan: Plan,
    checkpoint: Checkpoint,
    *,
    api: Api = "linen",
    stored: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Iterator[Source]:
    """Write the file beside an output; the output itself is written within the context.

    The file takes its name only when the output does: an incomplete output leaves the previous
    file. An older file is replaced without asking if no output is beside it (an interrupted
    conversion). One file may serve several outputs (`net.flax.safetensors`, `net.flax.msgpack`)
    with the same content.

    Args:
        output: the pytree's file or folder.
        plan: the plan of the conversion, without refused rows. Its dtypes are the checkpoint's,
            even if the arrays are cast as they are written.
        checkpoint: the values, by plan key.
        api: whose names the paths are made of.
        stored: plan key → the key in the file, if they differ (prefixes).
        overwrite: whether an existing file may be replaced.

    Yields:
        The final path of the file.

    Raises:
        OutputError: the disk refuses, or another file has this name.
    """
    infos = checkpoint.infos
    source_of = {row.targets: row.key for row in plan.mapped}
    keys = [
        {
            "key": row.key,
            "stored": (stored or {}).get(row.key, row.key),
            "shape": infos[row.key].shape,
            "dtype": infos[row.key].dtype,
            "tied": source_of[row.targets] if row.outcome is Outcome.TIED else "",
        }
        for row in plan.rows
        if row.shape is not None
    ]
    record = {
        # A local file's name alone: this one may go to others, and the folder be gone.
        "source": plan.checkpoint if "://" in plan.checkpoint else Path(plan.checkpoint).name,
        "api": api,
        "keys": keys,
        "leaves": [leaf_record(leaf) for leaf in plan.leaves],
    }
    entries = [
        TensorEntry(key, infos[key], lambda key=key: checkpoint.read(key))  # type: ignore[misc]
        for key in kept_keys(plan)
    ]
    # Only the array itself shows whether a computed array is unchanged.
    entries += [
        TensorEntry(computed_name(leaf.path), leaf.info, partial(leaf.read, checkpoint.read))
        for leaf in plan.leaves
        if isinstance(leaf.join, ComputedWeight)
    ]
    metadata = {"format": _FORMAT, "version": str(VERSION), "record": json.dumps(record)}
    path = kept_path(output)
    for key in kept_keys(plan):
        checkpoint.prepare(key)
    if isinstance(path, RemoteSource):
        assert isinstance(path, StoreSource)
        with _keeping_far(path, safetensors_bytes(entries, metadata), overwrite=overwrite):
            yield path
        return
    if path.exists() and not overwrite:
        if _holds(path, metadata, entries):
            yield path
            return
        if not _is_kept(path) or any(_outputs(path)):
            raise OutputError(
                f"{path} exists already", "name another output, or overwrite it (--force)"
            )
    pending = path.with_name(f".{path.name}.pending")
    write_safetensors(pending, entries, metadata, overwrite=True)
    try:
        yield path
        pending.replace(path)
        sync_folder(path.parent)
    finally:
        pending.unlink(missing_ok=True)


@contextmanager
def _keeping_far(path: StoreSource, data: bytes, *, overwrite: bool) -> Iterator[None]:
    objects = Objects(path)
    older = objects.get(path)
    if older is not None and older != data and not overwrite:
        stem = path.name.removesuffix(SUFFIX)
        beside = (path.with_name(stem + suffix) for suffix in ("", *_OUTPUT_SUFFIXES))
        if any(objects.written(place) or objects.below(place) for place in beside):
            raise OutputError(
                f"{path} exists already", "name another output, or overwrite it (--force)"
            )
    yield
    objects.put(path, data)


def computed_name(path: str) -> str:
    """Return the name of a computed array in the file; no torch key contains a slash."""
    return f"computed/{path}"


def read_kept(path: Path) -> Kept:
    """Read such a file; its tensors are read on demand.

    Raises:
        KeptFileError: the file is of another kind, damaged, or of a newer version.
        CheckpointNotFoundError: the file does not exist.
    """
    metadata = _metadata(path)
    if metadata.get("format") != _FORMAT:
        raise KeptFileError(f"{path} was not written beside a pytree", _AGAIN)
    if metadata.get("version") != str(VERSION):
        raise KeptFileError(
            f"{path} has version {metadata.get('version')}, this program reads {VERSION}",
            "use the version of the program that wrote it, or pass the model instead",
        )
    file = SafetensorsFile(path)
    try:
        record = json.loads(metadata["record"])
        keys = tuple(
            KeptKey(
                key["key"],
                key["stored"],
                TensorInfo(tuple(key["shape"]), key["dtype"]),
                key["tied"],
            )
            for key in record["keys"]
        )
        leaves = tuple(read_leaf(leaf) for leaf in record["leaves"])
        kept = Kept(record["source"], record["api"], keys, leaves, _Lazy(file))
        _check(kept)
    except (KeyError, TypeError, ValueError) as error:
        raise KeptFileError(
            f"{path} is damaged ({type(error).__name__}: {error})", _AGAIN
        ) from None
    return kept


def leaf_record(leaf: PlannedLeaf) -> dict[str, Any]:
    """Return an array and its pieces as plain values, in the text forms of a mapping file."""
    return {
        "path": leaf.path,
        "shape": list(leaf.info.shape),
        "dtype": leaf.info.dtype,
        "join": str(leaf.join),
        "pieces": [
            [piece.key, str(piece.layout), "" if piece.part is None else str(piece.part)]
            for piece in leaf.pieces
        ],
    }


def read_leaf(record: Mapping[str, Any]) -> PlannedLeaf:
    """The inverse of `leaf_record`.

    Raises:
        KeyError, TypeError, ValueError: the record is invalid.
    """
    pieces = tuple(
        Piece(key, parse_layout(layout), parse_part(part) if part else None)
        for key, layout, part in record["pieces"]
    )
    info = TensorInfo(tuple(record["shape"]), record["dtype"])
    return PlannedLeaf(record["path"], info, pieces, parse_join(record["join"]))


def is_undoable(leaf: PlannedLeaf, infos: Mapping[str, TensorInfo]) -> bool:
    """Whether the array alone determines its pieces."""
    shapes = [piece.shape(infos[piece.key].shape) for piece in leaf.pieces]
    small = [(1,) * len(shape) for shape in shapes]  # the answer does not depend on the sizes
    return leaf.join.split(np.zeros(leaf.join.shape(small), np.int8), small) is not None


def _is_determined(
    key: str,
    infos: Mapping[str, TensorInfo],
    leaves: Iterable[PlannedLeaf],
    undone: Mapping[str, bool],
) -> bool:
    """Whether the arrays contain every element of a tensor."""
    filled = 0
    for leaf in leaves:
        if not undone[leaf.path]:
            return False
        for piece in leaf.pieces:
            if piece.key == key:
                filled += TensorInfo(piece.shape(infos[key].shape), infos[key].dtype).size
    return filled == infos[key].size


def _infos(plan: Plan) -> dict[str, TensorInfo]:
    return {
        row.key: TensorInfo(row.shape, row.dtype or "")
        for row in plan.rows
        if row.shape is not None
    }


def _check(kept: Kept) -> None:
    """Raise ValueError if the record contradicts itself or its tensors."""
    infos = {key.key: key.info for key in kept.keys}
    if len(infos) != len(kept.keys) or len({key.stored for key in kept.keys}) != len(kept.keys):
        raise ValueError("a key is there twice")
    for leaf in kept.leaves:
        shapes = [piece.shape(infos[piece.key].shape) for piece in leaf.pieces]
        if leaf.join.shape(shapes) != leaf.info.shape:
            raise ValueError(f"{leaf.path} is not made of its pieces")
    made_of = keys_of(kept.leaves)
    for key in kept.keys:
        if key.tied and key.tied not in infos:
            raise ValueError(f"{key.key} is tied to {key.tied}, which there is not")
        if key.tied and infos[key.tied] != key.info:
            raise ValueError(f"{key.key} is tied to {key.tied}, which is another kind of tensor")
        if key.key in kept.tensors and kept.tensors[key.key].shape != key.info.shape:
            raise ValueError(f"the tensor {key.key} has another shape")
        if key.key not in made_of and key.key not in kept.tensors and not key.tied:
            raise ValueError(f"the inputs of {key.key} are unknown")


def retarget(kept: Kept, leaves: Iterable[PlannedLeaf]) -> Kept:
    """Return the data for arrays of other names or arrangement (a scanned layout)."""
    return replace(kept, leaves=tuple(leaves))


def _outputs(path: Path) -> list[Path]:
    """Return the possible outputs beside such a file."""
    stem = path.name.removesuffix(SUFFIX)
    names = [stem, *(f"{stem}{suffix}" for suffix in _OUTPUT_SUFFIXES)]
    return [path.with_name(name) for name in names if path.with_name(name).exists()]


def _holds(path: Path, metadata: Mapping[str, str], entries: Sequence[TensorEntry]) -> bool:
    """Whether the file has the content that would be written."""
    try:
        if _metadata(path) != metadata:
            return False
        file = SafetensorsFile(path)
    except ConversionError:
        return False
    return set(file.infos) == {entry.key for entry in entries} and all(
        file.read(entry.key).tobytes() == entry.read().tobytes() for entry in entries
    )


def _is_kept(path: Path) -> bool:
    try:
        return _metadata(path).get("format") == _FORMAT
    except ConversionError:
        return False


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    SafetensorsFile(path)  # reports damaged and missing files in this package's words
    with safe_open(path, framework="np") as file:
        return file.metadata() or {}


class _Lazy(Mapping[str, Array]):
    """Tensors of a file, each read on demand."""

    def __init__(self, file: SafetensorsFile) -> None:
        self._file = file

    def __getitem__(self, key: str) -> Array:
        if key not in self._file.infos:
            raise KeyError(key)
        return self._file.read(key)

    def __iter__(self) -> Any:
        return iter(self._file.infos)

    def __len__(self) -> int:
        return len(self._file.infos)

    def __contains__(self, key: object) -> bool:
        return key in self._file.infos
