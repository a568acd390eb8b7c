"""Reading a pytree that was written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.checkpoint.pytree import Pytree, nest
from converters.checkpoint.reader import COPY_AGAIN, read_start
from converters.checkpoint.safetensors_file import SafetensorsFile
from converters.errors import CheckpointDamagedError, MissingDependencyError

_LENGTH_BYTES = 8  # of a safetensors header's length, little endian, which comes first


def load_pytree(path: Path | str) -> Pytree:
    """Read a pytree that `write_pytree` wrote: `{"params": {…}, "batch_stats": {…}}`, numpy leaves.

    The format is told by the content. The arrays are copies, so the file may change afterwards. The positions
    of lists are numbers where the file is said to have the names of nnx, as `nnx.State` has them.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointDamagedError: empty, truncated, or neither safetensors nor a msgpack pytree.
        MissingDependencyError: it is msgpack and flax is not installed.
    """
    path = Path(path)
    start = read_start(path, _LENGTH_BYTES)
    # Safetensors begins with its header's length; a msgpack map, read so, is absurdly long.
    if _LENGTH_BYTES + int.from_bytes(start, "little") <= path.stat().st_size:
        file = SafetensorsFile(path)
        tree = nest((key, file.read(key).copy()) for key in file.infos)
        return with_positions(tree) if metadata_of(path).get("names") == "nnx" else tree
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


def metadata_of(path: Path) -> Mapping[str, str]:
    """What the header of a safetensors file says beside its tensors."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little")))
    found: Mapping[str, str] = header.get("__metadata__", {})
    return found


def with_positions(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """The tree with numbers for keys that are digits: positions of lists, in nnx's names."""
    return {
        position(name): with_positions(node) if isinstance(node, Mapping) else node
        for name, node in tree.items()
    }


def position(name: Any) -> Any:
    """The number that a part of a path is in nnx, or the part itself."""
    return int(name) if isinstance(name, str) and name.isdecimal() and name.isascii() else name


def flax_serialization(path: Path) -> Any:
    """flax.serialization, which reads and writes msgpack pytrees.

    Raises:
        MissingDependencyError: flax is not installed.
    """
    try:
        from flax import serialization
    except ImportError:
        raise MissingDependencyError(
            f"{path}: msgpack pytrees need flax, which is not installed",
            'pip install "tpu-migrate[jax]"',
        ) from None
    return serialization
