"""Arrays of a Flax pytree by path, from safetensors, msgpack, orbax, or memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from converters.checkpoint.formats.safetensors_file import SafetensorsFile
from converters.checkpoint.open import open_checkpoint
from converters.checkpoint.pytree import Pytree, flatten
from converters.checkpoint.reader import COPY_AGAIN, Checkpoint, TensorInfo, read_start
from converters.errors import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
)
from converters.installing import missing_error
from converters.output.load import load_pytree
from converters.output.safetensors_layout import INDEX_NAME

Array = np.ndarray[Any, Any]
PytreeLike: TypeAlias = "Path | str | Pytree"


class Arrays(Checkpoint):
    """Pytree in memory, with its arrays by `/`-joined path.

    Raises:
        CheckpointDamagedError: a value is not an array.
    """

    def __init__(self, source: str, tree: Mapping[str, Any]) -> None:
        self.source = source
        self._arrays: dict[str, Any] = {}
        for path, value in flatten(tree).items():
            if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                raise CheckpointDamagedError(
                    f"{source}: {path} is a {type(value).__name__}, not an array",
                    "pass a pytree of arrays: variables of linen, or nnx.to_pure_dict(state)",
                )
            self._arrays[path] = value
        self.infos = {
            path: TensorInfo(tuple(array.shape), np.dtype(array.dtype).name)
            for path, array in self._arrays.items()
        }

    def read(self, key: str) -> Array:
        """Return the array of this path, on the host."""
        return np.asarray(self._arrays[key])


def open_arrays(source: PytreeLike) -> Checkpoint:
    """Open a pytree. Arrays of safetensors, in one file or several, are read on demand.

    Raises:
        CheckpointNotFoundError: the path does not exist.
        CheckpointDamagedError: the file is not a pytree of arrays.
        MissingDependencyError: msgpack needs flax, a folder needs orbax.
    """
    if isinstance(source, Mapping):
        return Arrays("the pytree", source)
    path = Path(source)
    if (path / INDEX_NAME).is_file():
        return open_checkpoint(path / INDEX_NAME, as_stored=True)
    if path.is_dir():
        return Arrays(str(path), _read_orbax(path))
    start = read_start(path, 8)
    # Safetensors begins with its header's length; read that way, a msgpack map is absurdly long.
    if 8 + int.from_bytes(start, "little") <= path.stat().st_size:
        return SafetensorsFile(path)
    return Arrays(str(path), load_pytree(path))


def _read_orbax(path: Path) -> Pytree:
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise missing_error("orbax", needed_by=f"the folder {path}") from None
    folder = path.resolve()
    for candidate in (folder, folder / "default"):  # item of a CheckpointManager
        if (candidate / "_METADATA").exists():
            break
    else:
        raise CheckpointNotFoundError(
            f"{path} is not an orbax checkpoint (it has no _METADATA)", "name the step's folder"
        )
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            wanted = checkpointer.metadata(candidate).item_metadata.tree
            arguments = _numpy_everywhere(wanted, ocp)
            tree = checkpointer.restore(candidate, restore_args=arguments)
    except Exception as error:
        # orbax raises various errors for a truncated or foreign folder.
        raise CheckpointDamagedError(
            f"{path} cannot be read by orbax ({type(error).__name__}: {str(error)[:120]})",
            COPY_AGAIN,
        ) from None
    if not isinstance(tree, dict):
        raise CheckpointDamagedError(f"{path} is not a pytree of named arrays", COPY_AGAIN)
    return tree


def _numpy_everywhere(tree: Any, ocp: Any) -> Any:
    """Return every array on the host, whatever device it was saved from."""
    if isinstance(tree, Mapping):
        return {name: _numpy_everywhere(value, ocp) for name, value in tree.items()}
    return ocp.RestoreArgs(restore_type=np.ndarray)
