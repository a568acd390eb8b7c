"""Metadata of torch.distributed.checkpoint: the file range of each part of each tensor.

The `.metadata` file is a pickle of torch's own classes, which become records here.
https://github.com/pytorch/pytorch/blob/v2.9.1/torch/distributed/checkpoint/metadata.py
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from converters.checkpoint.dtypes import is_known, numpy_dtype
from converters.checkpoint.formats.refusals import damaged_pickle, reading
from converters.checkpoint.formats.torch_names import Named, OtherTensor, find_name
from converters.checkpoint.inert.records import Record
from converters.checkpoint.inert.unpickler import Unpickler
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.reader import TensorInfo, is_shape
from converters.checkpoint.source import Source

_LARGEST = 1 << 30  # bytes
_LONGEST_PATH = 64
_MOST_PAIRED = 256  # maximum number of parts of one tensor that are compared pairwise


@dataclass(frozen=True)
class FileRange:
    """Range of bytes that holds a part of a tensor, or an object.

    Attributes:
        file: the file name in the folder.
        offset: the first byte.
        length: the number of bytes.
    """

    file: str
    offset: int
    length: int


@dataclass(frozen=True)
class Chunk:
    """Part of a tensor.

    Attributes:
        offsets: the index of its first element in the tensor.
        shape: the shape of the part.
        location: the range of bytes.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    location: FileRange


@dataclass(frozen=True)
class Item:
    """Entry of a checkpoint.

    Attributes:
        path: the names and list positions that lead to the entry.
        info: shape and dtype, for a tensor.
        chunks: the parts of a tensor.
        location: the range of bytes of an object that is not a tensor.
        other: the description of a tensor that cannot be converted.
    """

    path: tuple[str | int, ...]
    info: TensorInfo | None = None
    chunks: tuple[Chunk, ...] = ()
    location: FileRange | None = None
    other: OtherTensor | None = None


def read_metadata(path: Source) -> list[Item]:
    """Return the entries of a checkpoint.

    Raises:
        CheckpointHoldsCodeError: it names classes that do not belong in such a file.
        CheckpointDamagedError: truncated, or it contradicts itself.
    """
    file = open_file(path)
    if file.size > _LARGEST:
        raise damaged_pickle(str(path), f"it has {file.size} bytes")
    try:
        with reading(path):
            data = file.copy(0, file.size)
            file.rest()
            # The pickle contains only records: three per part, of a few hundred bytes.
            loaded = Unpickler(data, 0, find_name, more=len(data)).load()
            return _items(_state(loaded, "Metadata"))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_pickle(str(path), str(error)[:120]) from None


def _items(metadata: dict[str, Any]) -> list[Item]:
    entries = _of(dict, metadata["state_dict_metadata"])
    locations = _locations(metadata.get("storage_data"))
    paths = metadata.get("planner_data") or {}
    if type(paths) is not dict:
        raise ValueError("its planner is not torch's default one")
    items = []
    parts = 0
    for name, entry in entries.items():
        items.append(_item(name, entry, locations, paths))
        parts += len(items[-1].chunks)
        if parts > len(locations):  # each part has a separate location
            raise ValueError("it has more parts than locations")
    return items


def _locations(storage: Any) -> dict[tuple[str, Any], FileRange]:
    """Return the range of bytes of each part: (name of the entry, offsets of the part) → range."""
    locations = {}
    for index, info in _of(dict, storage).items():
        at, where = _state(index, "MetadataIndex"), _state(info, "_StorageInfo")
        if where.get("transform_descriptors"):
            raise ValueError(f"it was written through {str(where['transform_descriptors'])[:40]}")
        offset, length = where["offset"], where["length"]
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise ValueError("a part has an impossible location")
        name, offsets = _of(str, at["fqn"]), at.get("offset")
        if offsets is not None and not is_shape(offsets):
            raise ValueError("a part has impossible offsets")
        locations[name, offsets] = FileRange(_of(str, where["relative_path"]), offset, length)
    return locations


def _item(name: Any, entry: Any, locations: dict[tuple[str, Any], FileRange], paths: Any) -> Item:
    _of(str, name)
    path = paths.get(name, (name,))
    if (
        type(path) is not tuple
        or not 0 < len(path) <= _LONGEST_PATH
        or any(type(step) not in (str, int) for step in path)
    ):
        raise ValueError(f"{name[:80]!a} has an impossible path")
    if _is(entry, "BytesStorageMetadata"):
        return Item(path, location=locations[name, None])
    state = _state(entry, "TensorStorageMetadata")
    dtype, shape = _dtype(state["properties"]), state["size"]
    if not is_shape(shape):
        raise ValueError(f"{name[:80]!a} has an impossible shape")
    if not is_known(dtype):
        return Item(path, other=OtherTensor(f"a tensor of the element type {dtype}"))
    chunks = tuple(
        _chunk(name, _state(part, "ChunkStorageMetadata"), locations)
        for part in _of(list, state["chunks"])
    )
    _require_whole(name, TensorInfo(tuple(shape), dtype), chunks)
    return Item(path, TensorInfo(tuple(shape), dtype), chunks)


def _chunk(name: str, part: dict[str, Any], locations: dict[tuple[str, Any], FileRange]) -> Chunk:
    offsets, sizes = part["offsets"], part["sizes"]
    if not is_shape(offsets) or not is_shape(sizes):
        raise ValueError(f"{name[:80]!a} has an impossible part")
    return Chunk(offsets, sizes, locations[name, offsets])


def _require_whole(name: str, info: TensorInfo, chunks: tuple[Chunk, ...]) -> None:
    """Check that the parts fill the tensor, each element once, and that the files contain their bytes."""
    filled = 0
    for chunk in chunks:
        inside = len(chunk.offsets) == len(chunk.shape) == len(info.shape) and all(
            first + side <= full
            for first, side, full in zip(chunk.offsets, chunk.shape, info.shape, strict=True)
        )
        size = math.prod(chunk.shape)
        if not inside or size * numpy_dtype(info.dtype, name).itemsize > chunk.location.length:
            raise ValueError(f"{name[:80]!a} has an impossible part")
        filled += size
    if filled != info.size or not (_is_grid(chunks, info.shape) or _are_apart(chunks)):
        raise ValueError(f"the parts of {name[:80]!a} leave gaps, or overlap")


def _is_grid(chunks: tuple[Chunk, ...], shape: tuple[int, ...]) -> bool:
    """Whether the parts are the cells of a grid, each once."""
    cuts = [sorted({chunk.offsets[side] for chunk in chunks}) for side in range(len(shape))]
    ends = [
        dict(zip(locations, [*locations[1:], size], strict=True))
        for locations, size in zip(cuts, shape, strict=True)
    ]
    cells = {
        chunk.offsets
        for chunk in chunks
        if all(
            end[first] == first + side
            for end, first, side in zip(ends, chunk.offsets, chunk.shape, strict=True)
        )
    }
    return len(cells) == len(chunks) == math.prod(map(len, cuts))


def _are_apart(chunks: tuple[Chunk, ...]) -> bool:
    """Whether no two of a few parts share an element."""
    return len(chunks) <= _MOST_PAIRED and not any(
        _overlap(chunk, other) for index, chunk in enumerate(chunks) for other in chunks[:index]
    )


def _overlap(chunk: Chunk, other: Chunk) -> bool:
    return all(
        max(a, b) < min(a + side, b + length)
        for a, side, b, length in zip(
            chunk.offsets, chunk.shape, other.offsets, other.shape, strict=True
        )
    )


def _dtype(properties: Any) -> str:
    state = _of(Record, properties).state
    first = state[0] if type(state) is tuple and state else state
    dtype = first.get("dtype") if isinstance(first, dict) else first
    if not isinstance(dtype, Named) or dtype.kind != "dtype":
        raise ValueError("a tensor has no element type")
    return dtype.name


def _is(value: Any, name: str) -> bool:
    """Whether the value stands for an object of torch's class of this name; torch 2.3 moved some classes."""
    return isinstance(value, Record) and value.name.rpartition(".")[2] == name


def _state(value: Any, name: str) -> dict[str, Any]:
    if not _is(value, name):
        raise ValueError(f"it has no {name} where one should be")
    return _of(dict, value.state)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"it has a {type(value).__name__} where a {kind.__name__} should be")
    return value
