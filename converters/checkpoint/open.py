"""Finding out what a path holds, by its content, and opening it."""

from __future__ import annotations

import os
from pathlib import Path

from converters.checkpoint.reader import Checkpoint, read_start
from converters.checkpoint.safetensors_file import SafetensorsFile
from converters.checkpoint.sharded import INDEX_SUFFIX, ShardedCheckpoint
from converters.checkpoint.torch_file import PICKLE_MAGIC, ZIP_MAGIC, open_torch_file
from converters.errors import CheckpointNotFoundError, NotAStateDictError

# In the order of preference of transformers' from_pretrained.
FOLDER_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def open_checkpoint(path: Path, key: str | None = None) -> Checkpoint:
    """Open a torch checkpoint; no tensor is loaded yet.

    Args:
        path: a `.safetensors` file, a file of `torch.save`, a `*.index.json` with its shards beside
            it, or a folder with one of these under its Hugging Face name.
        key: the entry that holds the weights, in a training checkpoint of `torch.save`.

    Raises:
        CheckpointNotFoundError: nothing is there, or a folder without a checkpoint.
        CheckpointDamagedError: empty, truncated, unreadable or of an unknown format.
        CheckpointHoldsCodeError: a pickle that names code; nothing of it was executed.
        NotAStateDictError: it holds something else than a state dict.
    """
    if os.path.isdir(path):  # pathlib's form raises for a name that is too long
        return open_checkpoint(_file_in_folder(path), key)
    if path.name.endswith(INDEX_SUFFIX):
        read_start(path, 1)
        return ShardedCheckpoint(path, lambda shard: open_checkpoint(shard, key))
    start = read_start(path, 8)
    if start.startswith((ZIP_MAGIC, PICKLE_MAGIC)) and not _may_be_safetensors(path, start):
        return open_torch_file(path, start, key)
    if key is not None:
        raise NotAStateDictError(
            f'{path} is not a training checkpoint, so it has no key "{key}"', "leave the key out"
        )
    return SafetensorsFile(path)


def _may_be_safetensors(path: Path, start: bytes) -> bool:
    """Whether the first bytes are a header length that fits: 0x80 may begin one, too."""
    return 8 + int.from_bytes(start, "little") <= path.stat().st_size


def _file_in_folder(folder: Path) -> Path:
    for name in FOLDER_NAMES:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointNotFoundError(
        f"{folder} holds no checkpoint (looked for {', '.join(FOLDER_NAMES)})",
        "name the checkpoint file itself",
    )
