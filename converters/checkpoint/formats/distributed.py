"""Reading a folder of torch.distributed.checkpoint (DCP): `.metadata`, and `.distcp` files of every rank.

Each part of a tensor is a whole torch.save archive somewhere in a `.distcp` file; it is read as such, lazily.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.formats.distributed_metadata import Chunk, Item, Place, read_metadata
from converters.checkpoint.formats.legacy_file import Loaded
from converters.checkpoint.formats.refusals import reading
from converters.checkpoint.formats.sharded import is_file_name, leads_out
from converters.checkpoint.formats.torch_file import load, unbuilt
from converters.checkpoint.formats.torch_zip import read_zip
from converters.checkpoint.formats.training import find_state_dict
from converters.checkpoint.lazy import LazyTensor, TensorsCheckpoint
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.place import Place as FilePlace
from converters.checkpoint.place import for_each
from converters.checkpoint.reader import COPY_AGAIN, TensorInfo
from converters.checkpoint.zip_archive import ZipArchive
from converters.errors import CheckpointDamagedError, CheckpointNotFoundError

METADATA = ".metadata"
# What Lightning writes beside it: hyperparameters, counters, the state of callbacks.
_BESIDE = "meta.pt"
_SHOWN = 5


def open_distributed(folder: FilePlace, key: str | None) -> TensorsCheckpoint:
    """The state dict in such a folder.

    Args:
        folder: with `.metadata` in it.
        key: the entry that holds the weights; None: the only one.

    Raises:
        CheckpointHoldsCodeError: a pickle names code; nothing of it was executed.
        CheckpointDamagedError: truncated, or `.metadata` contradicts itself or its files.
        CheckpointNotFoundError: files that it names are not there.
        NotAStateDictError: no state dict, or several and no (or a wrong) `key`.
    """
    items = read_metadata(folder / METADATA)
    files = _Files(folder, items)
    beside = _beside(folder)
    saved = _tree(folder, items, files)
    tree = dict(beside.value) | saved
    with reading(folder / METADATA):
        found = find_state_dict(str(folder), tree, key)
    checkpoint = TensorsCheckpoint(
        str(folder),
        found.tensors,
        others=found.others,
        found=found.where,
        training=lambda: {
            name: _plain(value) if name in saved else value for name, value in found.rest.items()
        },
        options=found.options,
        unbuilt=unbuilt(beside.unknown),
    )
    checkpoint.keys_in_order = False
    return checkpoint


def _beside(folder: FilePlace) -> Loaded:
    """The entries of the file that Lightning writes beside the metadata; none where there is none."""
    path = folder / _BESIDE
    if not path.is_file():
        return Loaded({})
    file = open_file(path)
    with reading(path):
        loaded = load(file)
        file.rest()
    return loaded if type(loaded.value) is dict else Loaded({}, loaded.unknown)


class _Files:
    """The files of a folder that its metadata name, opened once each."""

    def __init__(self, folder: FilePlace, items: list[Item]) -> None:
        self._folder = folder
        places = [place for item in items for place in _places(item)]
        names = sorted({place.file for place in places})
        outside = [name for name in names if not is_file_name(name)]
        inside = [name for name in names if name not in outside]
        there = for_each(lambda place: place.is_file(), [folder / name for name in inside])
        missing = [name for name, found in zip(inside, there, strict=True) if not found]
        if missing:
            raise CheckpointNotFoundError(
                f"{folder} lacks files that its {METADATA} names: {', '.join(missing[:_SHOWN])}",
                "copy the files of every rank into the same folder",
            )
        outside += [name for name in names if name not in outside and leads_out(folder, name)]
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
        for place in places:
            if place.offset + place.length > self._files[place.file].size:
                raise CheckpointDamagedError(f"{folder / place.file} is truncated", COPY_AGAIN)

    def load(self, place: Place) -> Any:
        """What was saved there, its tensors lazy."""
        file = self._files[place.file]
        with reading(file.path):
            return read_zip(ZipArchive(file, place.offset, place.offset + place.length)).value

    def prepare(self, place: Place) -> None:
        """Begin to read what was saved there."""
        self._files[place.file].prepare(place.offset, place.offset + place.length)

    def tensor(self, chunk: Chunk, dtype: str) -> LazyTensor:
        """A part of a tensor."""
        loaded = self.load(chunk.place)
        if not isinstance(loaded, LazyTensor) or loaded.info != TensorInfo(chunk.shape, dtype):
            raise CheckpointDamagedError(
                f"{self._folder / chunk.place.file} has another thing at byte {chunk.place.offset} "
                f"than its {METADATA} says",
                COPY_AGAIN,
            )
        return loaded


class _Parts(LazyTensor):
    """A tensor made of parts; one that is whole in its file stays a view of that."""

    def __init__(self, info: TensorInfo, chunks: tuple[Chunk, ...], files: _Files) -> None:
        self.info = info
        self._chunks = chunks
        self._files = files
        self._opened: dict[int, LazyTensor] = {}

    def prepare(self) -> None:
        """Begin to read its parts, each with the small archive that it is in."""
        for chunk in self._chunks:
            self._files.prepare(chunk.place)

    def read(self) -> np.ndarray[Any, Any]:
        """Its values; the pages of its parts are released on the way."""
        if len(self._chunks) == 1 and self._chunks[0].shape == self.info.shape:
            return self._part(0).read()
        whole = np.empty(self.info.shape, numpy_dtype(self.info.dtype, "a tensor"))
        for index, chunk in enumerate(self._chunks):
            bounds = zip(chunk.offsets, chunk.shape, strict=True)
            part = self._part(index)
            whole[tuple(slice(first, first + side) for first, side in bounds)] = part.read()
            part.release()
        return whole

    def release(self) -> None:
        """Give the pages of its parts back."""
        for part in self._opened.values():
            part.release()

    def _part(self, index: int) -> LazyTensor:
        if index not in self._opened:
            self._opened[index] = self._files.tensor(self._chunks[index], self.info.dtype)
        return self._opened[index]


class _SavedObject:
    """What is no tensor, in a file of its own right; read when it is asked for."""

    def __init__(self, place: Place, files: _Files) -> None:
        self._place = place
        self._files = files

    def load(self) -> Any:
        """The object, in plain containers."""
        return self._files.load(self._place)


def _places(item: Item) -> list[Place]:
    return [chunk.place for chunk in item.chunks] + ([item.place] if item.place else [])


def _tree(folder: FilePlace, items: list[Item], files: _Files) -> dict[Any, Any]:
    """The nested dicts that were saved; a list is a dict of its positions."""
    tree: dict[Any, Any] = {}
    for item in items:
        node = tree
        *above, name = item.path
        for step in above:
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
    if item.place:
        return _SavedObject(item.place, files)
    assert item.info is not None, "an entry is one of the three"
    return _Parts(item.info, item.chunks, files)


def _plain(value: Any) -> Any:
    """The value with its objects read, and lists where positions are numbers."""
    if isinstance(value, _SavedObject):
        return value.load()
    if not isinstance(value, Mapping):
        return value
    made = {name: _plain(item) for name, item in value.items()}
    if made and all(type(name) is int for name in made) and set(made) == set(range(len(made))):
        return [made[position] for position in range(len(made))]
    return made
