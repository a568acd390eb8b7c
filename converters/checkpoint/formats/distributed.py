"""Reader of torch.distributed.checkpoint (DCP) folders: `.metadata`, and `.distcp` files of every rank.

Each part of a tensor is a complete torch.save archive within a `.distcp` file, and is read lazily
as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.formats.distributed_metadata import Chunk, FileRange, Item, read_metadata
from converters.checkpoint.formats.legacy_file import Loaded
from converters.checkpoint.formats.refusals import reading
from converters.checkpoint.formats.sharded import is_file_name, is_link_out
from converters.checkpoint.formats.torch_file import load, unbuilt_classes
from converters.checkpoint.formats.torch_zip import read_zip
from converters.checkpoint.formats.training import find_state_dict
from converters.checkpoint.lazy import LazyTensor, TensorsCheckpoint
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.reader import COPY_AGAIN, TensorInfo
from converters.checkpoint.source import Source, for_each
from converters.checkpoint.zip_archive import ZipArchive
from converters.errors import CheckpointDamagedError, CheckpointNotFoundError

METADATA = ".metadata"
# File that Lightning writes beside it: hyperparameters, counters, callback states.
_BESIDE = "meta.pt"
_SHOWN = 5


def open_distributed(folder: Source, key: str | None) -> TensorsCheckpoint:
    """Open the state dict in such a folder.

    Args:
        folder: a folder with `.metadata`.
        key: the entry that holds the weights; None for the only entry.

    Raises:
        CheckpointHoldsCodeError: a pickle names code; nothing was executed.
        CheckpointDamagedError: truncated, or `.metadata` contradicts itself or its files.
        CheckpointNotFoundError: files named by the metadata are missing.
        NotAStateDictError: no state dict, or several and no (or a wrong) `key`.
    """
    items = read_metadata(folder / METADATA)
    files = _Files(folder, items)
    beside = _beside(folder)
    saved = _tree(folder, items, files)
    tree = dict(beside.value) | saved
    with reading(folder / METADATA):
        match = find_state_dict(str(folder), tree, key)
    checkpoint = TensorsCheckpoint(
        str(folder),
        match.tensors,
        others=match.others,
        entry=match.where,
        training=lambda: {
            name: _plain(value) if name in saved else value for name, value in match.rest.items()
        },
        options=match.options,
        unbuilt=unbuilt_classes(beside.unknown),
    )
    checkpoint.keys_in_order = False
    return checkpoint


def _beside(folder: Source) -> Loaded:
    """Return the entries of the file that Lightning writes beside the metadata; empty without the file."""
    path = folder / _BESIDE
    if not path.is_file():
        return Loaded({})
    file = open_file(path)
    with reading(path):
        loaded = load(file)
        file.rest()
    return loaded if type(loaded.value) is dict else Loaded({}, loaded.unknown)


class _Files:
    """Files of a folder that its metadata names, each opened once."""

    def __init__(self, folder: Source, items: list[Item]) -> None:
        self._folder = folder
        locations = [location for item in items for location in _locations(item)]
        names = sorted({location.file for location in locations})
        outside = [name for name in names if not is_file_name(name)]
        inside = [name for name in names if name not in outside]
        there = for_each(lambda location: location.is_file(), [folder / name for name in inside])
        missing = [name for name, exists in zip(inside, there, strict=True) if not exists]
        if missing:
            raise CheckpointNotFoundError(
                f"{folder} lacks files that its {METADATA} names: {', '.join(missing[:_SHOWN])}",
                "copy the files of every rank into the same folder",
            )
        outside += [name for name in names if name not in outside and is_link_out(folder, name)]
        if outside:
            raise CheckpointDamagedError(
                f"{folder / METADATA} names files outside its folder: "
                + ", ".join(ascii(name)[1:-1][:80] for name in outside[:_SHOWN]),
                "put the files themselves beside it, or copy it again",
            )
        opened = for_each(open_file, [folder / name for name in names])
        self._files = dict(zip(names, opened, strict=True))
        for file in opened:
            file.rest()
        for location in locations:
            if location.offset + location.length > self._files[location.file].size:
                raise CheckpointDamagedError(f"{folder / location.file} is truncated", COPY_AGAIN)

    def load(self, location: FileRange) -> Any:
        """Return the object saved there, with lazy tensors."""
        file = self._files[location.file]
        with reading(file.path):
            return read_zip(
                ZipArchive(file, location.offset, location.offset + location.length)
            ).value

    def prepare(self, location: FileRange) -> None:
        """Begin to read the object saved there."""
        self._files[location.file].prepare(location.offset, location.offset + location.length)

    def tensor(self, chunk: Chunk, dtype: str) -> LazyTensor:
        """Return a part of a tensor."""
        loaded = self.load(chunk.location)
        if not isinstance(loaded, LazyTensor) or loaded.info != TensorInfo(chunk.shape, dtype):
            raise CheckpointDamagedError(
                f"{self._folder / chunk.location.file} has another thing at byte {chunk.location.offset} "
                f"than its {METADATA} lists",
                COPY_AGAIN,
            )
        return loaded


class _Parts(LazyTensor):
    """Tensor made of parts. A tensor stored whole in one file is a view of that file."""

    def __init__(self, info: TensorInfo, chunks: tuple[Chunk, ...], files: _Files) -> None:
        self.info = info
        self._chunks = chunks
        self._files = files
        self._opened: dict[int, LazyTensor] = {}

    def prepare(self) -> None:
        """Begin to read the parts, each with the small archive that contains it."""
        for chunk in self._chunks:
            self._files.prepare(chunk.location)

    def read(self) -> np.ndarray[Any, Any]:
        """Return the values. The pages of the parts are released during the read."""
        if len(self._chunks) == 1 and self._chunks[0].shape == self.info.shape:
            return self._part(0).read()
        tensor = np.empty(self.info.shape, numpy_dtype(self.info.dtype, "a tensor"))
        for index, chunk in enumerate(self._chunks):
            bounds = zip(chunk.offsets, chunk.shape, strict=True)
            part = self._part(index)
            tensor[tuple(slice(first, first + side) for first, side in bounds)] = part.read()
            part.release()
        return tensor

    def release(self) -> None:
        """Release the pages of the parts."""
        for part in self._opened.values():
            part.release()

    def _part(self, index: int) -> LazyTensor:
        if index not in self._opened:
            self._opened[index] = self._files.tensor(self._chunks[index], self.info.dtype)
        return self._opened[index]


class _SavedObject:
    """Object that is not a tensor, in a separate file, read on demand."""

    def __init__(self, location: FileRange, files: _Files) -> None:
        self._place = location
        self._files = files

    def load(self) -> Any:
        """Return the object as plain containers."""
        return self._files.load(self._place)


def _locations(item: Item) -> list[FileRange]:
    return [chunk.location for chunk in item.chunks] + ([item.location] if item.location else [])


def _tree(folder: Source, items: list[Item], files: _Files) -> dict[Any, Any]:
    """Return the saved nested dicts; a list is a dict of its positions."""
    tree: dict[Any, Any] = {}
    for item in items:
        node = tree
        *parents, name = item.path
        for step in parents:
            node = node.setdefault(step, {})
            if type(node) is not dict:
                break
        if type(node) is not dict or name in node:
            path = ".".join(map(str, item.path))
            raise CheckpointDamagedError(
                f"{folder / METADATA} has two entries at {ascii(path)[:160]}", COPY_AGAIN
            )
        node[name] = _leaf(item, files)
    return tree


def _leaf(item: Item, files: _Files) -> Any:
    if item.other:
        return item.other
    if item.location:
        return _SavedObject(item.location, files)
    assert item.info is not None, "an entry is one of the three"
    return _Parts(item.info, item.chunks, files)


def _plain(value: Any) -> Any:
    """Return the value with its objects read, and dicts with numeric keys as lists."""
    if isinstance(value, _SavedObject):
        return value.load()
    if not isinstance(value, Mapping):
        return value
    entries = {name: _plain(item) for name, item in value.items()}
    if (
        entries
        and all(type(name) is int for name in entries)
        and set(entries) == set(range(len(entries)))
    ):
        return [entries[position] for position in range(len(entries))]
    return entries
