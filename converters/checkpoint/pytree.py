"""Flax pytrees on disk: safetensors with `/`-joined keys, or msgpack; written atomically.

The keys begin with the collection: `params/encoder/layer_0/…/kernel`, `batch_stats/bn/mean`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np

from converters.atomic import atomic_write
from converters.checkpoint.dtypes import SAFETENSORS_CODES, numpy_dtype
from converters.checkpoint.reader import COPY_AGAIN, TensorInfo, read_start
from converters.checkpoint.safetensors_file import SafetensorsFile
from converters.errors import CheckpointDamagedError, MissingDependencyError, UnsupportedDtypeError

Format = Literal["safetensors", "msgpack"]
Pytree = dict[str, Any]  # nested dicts of arrays, e.g. {"params": {"dense": {"kernel": …}}}


@dataclass(frozen=True)
class Leaf:
    """One array of a pytree: its `/`-joined path, its shape and dtype, and how to get it."""

    path: str
    info: TensorInfo
    read: Callable[[], np.ndarray[Any, Any]]


def write_pytree(
    output: Path, leaves: Sequence[Leaf], form: Format, *, overwrite: bool = False
) -> None:
    """Write a pytree, atomically. Safetensors holds one array in memory at a time, msgpack all.

    Raises:
        OutputError: the output exists and may not be overwritten, or the disk refuses.
        UnsupportedDtypeError: the format cannot hold an array's element type.
        MissingDependencyError: msgpack is asked for and flax is not installed.
        ValueError: no such format.
    """
    if form not in get_args(Format):
        raise ValueError(f"{form!r} is not one of {get_args(Format)}")
    if form == "safetensors":
        header, ordered = _safetensors_header(leaves)
        with atomic_write(output, overwrite=overwrite) as file:
            file.write(header)
            for leaf in ordered:
                _write_array(file, leaf)
    else:
        serialization = _flax_serialization(output)
        with atomic_write(output, overwrite=overwrite) as file:
            tree = nest((leaf.path, leaf.read()) for leaf in leaves)
            file.write(serialization.msgpack_serialize(tree, in_place=True))


def load_pytree(path: Path | str) -> Pytree:
    """Read a pytree that `write_pytree` wrote: `{"params": {…}, "batch_stats": {…}}`, numpy leaves.

    The format is told by the content. The arrays are copies, so the file may change afterwards.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CheckpointDamagedError: empty, truncated, or neither safetensors nor a msgpack pytree.
        MissingDependencyError: it is msgpack and flax is not installed.
    """
    path = Path(path)
    start = read_start(path, 8)
    # Safetensors begins with its header's length; a msgpack map, read so, is absurdly long.
    if 8 + int.from_bytes(start, "little") <= path.stat().st_size:
        file = SafetensorsFile(path)
        return nest((key, file.read(key).copy()) for key in file.infos)
    serialization = _flax_serialization(path)
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


def nest(arrays: Iterable[tuple[str, Any]]) -> Pytree:
    """Nested dicts from `/`-joined paths."""
    tree: Pytree = {}
    for path, array in arrays:
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[name] = array
    return tree


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`/`-joined paths from nested dicts: the inverse of `nest`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return flat


def _safetensors_header(leaves: Sequence[Leaf]) -> tuple[bytes, list[Leaf]]:
    for leaf in leaves:
        if leaf.info.dtype not in SAFETENSORS_CODES:
            raise UnsupportedDtypeError(
                f"{leaf.path} has the element type {leaf.info.dtype}, which safetensors lacks",
                "write msgpack instead",
            )
    # Wide types first, as the safetensors library does: every array is then aligned in the file.
    ordered = sorted(
        leaves, key=lambda leaf: (-numpy_dtype(leaf.info.dtype, leaf.path).itemsize, leaf.path)
    )
    entries: dict[str, Any] = {"__metadata__": {"format": "flax"}}
    offset = 0
    for leaf in ordered:
        end = offset + leaf.info.nbytes
        entries[leaf.path] = {
            "dtype": SAFETENSORS_CODES[leaf.info.dtype],
            "shape": leaf.info.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered


def _write_array(file: BinaryIO, leaf: Leaf) -> None:
    array = leaf.read()
    if array.shape != leaf.info.shape or array.dtype.name != leaf.info.dtype:
        # The header is written already: a file that contradicts it must never be completed.
        raise RuntimeError(f"{leaf.path}: announced {leaf.info}, got {array.shape} {array.dtype}")
    # ml_dtypes' arrays have no buffer of their own type; their bytes do.
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _flax_serialization(path: Path) -> Any:
    try:
        from flax import serialization
    except ImportError:
        raise MissingDependencyError(
            f"{path}: msgpack pytrees need flax, which is not installed",
            'pip install "tpu-migrate[jax]"',
        ) from None
    return serialization
