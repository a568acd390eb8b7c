"""Reading a checkpoint in several files, which an `*.index.json` lists (Hugging Face's form)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.reader import COPY_AGAIN, Checkpoint
from converters.errors import CheckpointDamagedError, CheckpointNotFoundError

INDEX_SUFFIX = ".index.json"


class ShardedCheckpoint(Checkpoint):
    """The shards of one index, read as one checkpoint.

    Args:
        index: the `*.index.json`, whose `weight_map` says which file of the same folder holds
            which key.
        open_file: opens one shard.

    Raises:
        CheckpointNotFoundError: shards that the index names are not there (all of them are named).
        CheckpointDamagedError: the index is no index, names a file outside its folder, or disagrees
            with its shards.
    """

    def __init__(self, index: Path, open_file: Callable[[Path], Checkpoint]) -> None:
        self.source = str(index)
        self._file_of = _read_weight_map(index)
        names = sorted(set(self._file_of.values()))
        outside = [name for name in names if not name or Path(name).name != name]
        if outside:
            raise CheckpointDamagedError(
                f"{index} names files outside its folder: {', '.join(outside)}", COPY_AGAIN
            )
        missing = [name for name in names if not (index.parent / name).is_file()]
        if missing:
            raise CheckpointNotFoundError(
                f"{index} names shards that are not there: {', '.join(missing)}",
                "download them into the same folder",
            )
        self._shards = {name: open_file(index.parent / name) for name in names}
        listed = set(self._file_of.items())
        present = {(key, name) for name, shard in self._shards.items() for key in shard.infos}
        if listed != present:
            examples = ", ".join(sorted(key for key, _ in listed ^ present)[:3])
            raise CheckpointDamagedError(
                f"{index} disagrees with its shards on {len(listed ^ present)} keys ({examples})",
                COPY_AGAIN,
            )
        self.infos = {key: self._shards[name].infos[key] for key, name in self._file_of.items()}

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """The tensor of this key, from its shard."""
        return self._shards[self._file_of[key]].read(key)


def _read_weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError):
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
