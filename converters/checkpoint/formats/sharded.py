"""Reader of a checkpoint in several files, listed in an `*.index.json` (Hugging Face's form)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.formats.safetensors_file import first_duplicate
from converters.checkpoint.reader import COPY_AGAIN, Checkpoint
from converters.checkpoint.source import RemoteSource, Source, Window, for_each, size_of
from converters.errors import CheckpointDamagedError, CheckpointNotFoundError

INDEX_SUFFIX = ".index.json"
_LARGEST_INDEX = 1 << 30  # maximum bytes
_SHOWN = 5


class ShardedCheckpoint(Checkpoint):
    """Shards of one index, read as one checkpoint.

    Args:
        index: the `*.index.json`, whose `weight_map` maps keys to files of the same
            folder.
        open_file: opens one shard.

    Raises:
        CheckpointNotFoundError: shards named by the index are missing; the message names all.
        CheckpointDamagedError: the index is invalid, names a file outside its folder, or disagrees
            with its shards.
    """

    keys_in_order = False

    def __init__(self, index: Source, open_file: Callable[[Source], Checkpoint]) -> None:
        self.source = str(index)
        self._file_of = _read_weight_map(index)
        names = sorted(set(self._file_of.values()))
        outside = [name for name in names if not is_file_name(name)]
        _refuse_outside(index, outside)
        there = for_each(lambda place: place.is_file(), [index.parent / name for name in names])
        missing = [name for name, exists in zip(names, there, strict=True) if not exists]
        if missing:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise CheckpointNotFoundError(
                f"{index} names shards that are not there: {', '.join(missing[:_SHOWN])}{more}",
                "download them into the same folder",
            )
        _refuse_outside(index, [name for name in names if is_link_out(index.parent, name)])
        self._shards = dict(
            zip(names, for_each(open_file, [index.parent / name for name in names]), strict=True)
        )
        listed = set(self._file_of.items())
        present = {(key, name) for name, shard in self._shards.items() for key in shard.infos}
        if listed != present:
            examples = ", ".join(sorted(key for key, _ in listed ^ present)[:3])
            raise CheckpointDamagedError(
                f"{index} disagrees with its shards on {len(listed ^ present)} keys ({examples})",
                COPY_AGAIN,
            )
        self.infos = {key: self._shards[name].infos[key] for key, name in self._file_of.items()}
        self.others = {
            key: what for shard in self._shards.values() for key, what in shard.others.items()
        }
        self.shared = tuple(keys for shard in self._shards.values() for keys in shard.shared)

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return the tensor of this key from its shard."""
        return self._shards[self._file_of[key]].read(key)

    def window(self, key: str) -> Window | None:
        """Return the tensor of this key for reading in parts."""
        return self._shards[self._file_of[key]].window(key)

    def prepare(self, key: str) -> None:
        """Begin to read the tensor of this key."""
        self._shards[self._file_of[key]].prepare(key)

    def release(self, key: str) -> None:
        """Release the pages of the tensor."""
        self._shards[self._file_of[key]].release(key)


def is_file_name(name: str) -> bool:
    """Whether the name is a file name in the same folder."""
    return bool(name) and Path(name).name == name and "\0" not in name and name.isprintable()


def is_link_out(folder: Source, name: str) -> bool:
    """Whether a file of this folder is a link out of it.

    The cache of huggingface_hub consists of such links, from `snapshots/REVISION/FILE` to
    `blobs/HASH` of the same repository. Those stay inside.
    """
    if isinstance(folder, RemoteSource):
        return False  # there are no links
    place = folder.resolve()
    target = (folder / name).resolve()
    blobs = place.parent.parent / "blobs" if place.parent.name == "snapshots" else None
    return target.parent != place and target.parent != blobs


def _refuse_outside(index: Source, names: list[str]) -> None:
    if names:
        shown = ", ".join(ascii(name)[1:-1][:80] for name in names[:_SHOWN])
        raise CheckpointDamagedError(
            f"{index} names files outside its folder: {shown}",
            "put the files themselves beside it, or download it again",
        )


def _read_weight_map(index: Source) -> dict[str, str]:
    try:
        if size_of(index) > _LARGEST_INDEX:
            raise ValueError("too large")
        text = index.read_bytes().decode()
        weight_map = json.loads(text, object_pairs_hook=_without_duplicates)["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, _DuplicateKeyError):
            raise CheckpointDamagedError(f"{index} has {error} twice", COPY_AGAIN) from None
        weight_map = None
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise CheckpointDamagedError(
            f"{index} is not an index: it has no weight_map of keys to files", COPY_AGAIN
        )
    return weight_map


class _DuplicateKeyError(ValueError):
    pass


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _DuplicateKeyError(ascii(first_duplicate(pairs))[:160])
    return entries
