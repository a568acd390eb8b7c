"""Loading of pytrees written by this package."""

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

_LENGTH_BYTES = 8  # bytes of a safetensors header's length, little endian, which comes first


def load_pytree(path: Path | str) -> Pytree:
    """Load a pytree written by `write_pytree`: `{"params": {…}, "batch_stats": {…}}`, with numpy leaves.

    The content determines the format. The arrays are copies, so the file may change afterwards.
    Positions of lists are numbers if the metadata contains `api: nnx`, as in `nnx.State`.

    Raises:
        CheckpointNotFoundError: the path does not exist.
        CheckpointDamagedError: the file is empty, truncated, or neither safetensors nor msgpack,
            nor a folder of one.
        MissingDependencyError: the format needs flax (msgpack) or orbax, which is not installed.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path)
    start = read_start(path, _LENGTH_BYTES)
    # Safetensors begins with its header's length; read that way, a msgpack map is absurdly long.
    if _LENGTH_BYTES + int.from_bytes(start, "little") <= path.stat().st_size:
        file = SafetensorsFile(path)
        tree = nest((key, file.read(key).copy()) for key in file.infos)
        return with_positions(tree) if metadata_of(path).get("api") == "nnx" else tree
    serialization = flax_serialization(path)
    try:
        tree = serialization.msgpack_restore(path.read_bytes())
    except Exception as error:
        # msgpack raises various errors for truncated or foreign bytes.
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
        # tensorstore raises various errors for a missing or truncated chunk.
        raise CheckpointDamagedError(
            f"{folder} is not a whole orbax checkpoint ({type(error).__name__})", COPY_AGAIN
        ) from None
    pytree: Pytree = restored
    return pytree


def metadata_of(path: Path) -> Mapping[str, str]:
    """Return the metadata in the header of a safetensors file."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))
    metadata: Mapping[str, str] = header.get("__metadata__", {})
    return metadata


def flax_serialization(path: Path) -> Any:
    """Import flax.serialization, which reads and writes msgpack pytrees.

    Raises:
        MissingDependencyError: flax is not installed.
    """
    try:
        from flax import serialization
    except ImportError:
        raise missing_error("flax", needed_by=f"the pytree {path}") from None
    return serialization
