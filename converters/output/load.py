"""Reading a pytree that was written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.checkpoint.formats.safetensors_file import SafetensorsFile
from converters.checkpoint.open import open_checkpoint
from converters.checkpoint.pytree import Pytree, nest, with_positions
from converters.checkpoint.reader import COPY_AGAIN, read_start
from converters.errors import CheckpointDamagedError
from converters.installing import missing_error
from converters.output.orbax_layout import METADATA_NAME
from converters.output.safetensors_layout import INDEX_NAME

_LENGTH_BYTES = 8  # of a safetensors header's length, little endian, which comes first


def load_pytree(path: Path | str) -> Pytree:
    """Read a pytree that `write_pytree` wrote: `{"params": {…}, "batch_stats": {…}}`, numpy leaves.

    The format is told by the content. The arrays are copies, so the file may change afterwards. The positions
    of lists are numbers where its metadata says `api: nnx`, as `nnx.State` has them.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointDamagedError: empty, truncated, or neither safetensors nor msgpack, nor a folder of one.
        MissingDependencyError: it is msgpack and flax is not installed, or orbax and that is not.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path)
    start = read_start(path, _LENGTH_BYTES)
    # Safetensors begins with its header's length; a msgpack map, read so, is absurdly long.
    if _LENGTH_BYTES + int.from_bytes(start, "little") <= path.stat().st_size:
        file = SafetensorsFile(path)
        tree = nest((key, file.read(key).copy()) for key in file.infos)
        return with_positions(tree) if metadata_of(path).get("api") == "nnx" else tree
    serialization = flax_serialization(path)
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
    except Exception as error:
        # msgpack raises whatever its cut-off or foreign bytes lead to.
        raise CheckpointDamagedError(
            f"{path} is truncated or not a pytree ({type(error).__name__})", COPY_AGAIN
        ) from None
    if not isinstance(tree, dict):
        raise CheckpointDamagedError(f"{path} is not a pytree of named arrays", COPY_AGAIN)
    return tree


def _load_folder(folder: Path) -> Pytree:
    index = folder / INDEX_NAME
    if index.is_file():
        checkpoint = open_checkpoint(index, as_stored=True)
        tree = nest((key, checkpoint.read(key).copy()) for key in checkpoint.infos)
        described = json.loads(index.read_text("utf-8")).get("metadata", {})
        return with_positions(tree) if described.get("api") == "nnx" else tree
    if not (folder / METADATA_NAME).is_file():
        raise CheckpointDamagedError(
            f"{folder} is not a pytree: neither {INDEX_NAME} nor {METADATA_NAME} is in it",
            COPY_AGAIN,
        )
    try:
        from orbax import checkpoint as orbax
    except ImportError:
        raise missing_error("orbax", needed_by=f"the checkpoint {folder}") from None
    try:
        restored = orbax.PyTreeCheckpointer().restore(folder.resolve())
    except Exception as error:
        # tensorstore raises whatever a missing or cut-off chunk leads to.
        raise CheckpointDamagedError(
            f"{folder} is not a whole orbax checkpoint ({type(error).__name__})", COPY_AGAIN
        ) from None
    found: Pytree = restored
    return found


def metadata_of(path: Path) -> Mapping[str, str]:
    """What the header of a safetensors file says beside its tensors."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))
    found: Mapping[str, str] = header.get("__metadata__", {})
    return found


def flax_serialization(path: Path) -> Any:
    """flax.serialization, which reads and writes msgpack pytrees.

    Raises:
        MissingDependencyError: flax is not installed.
    """
    try:
        from flax import serialization
    except ImportError:
        raise missing_error("flax", needed_by=f"the pytree {path}") from None
    return serialization
