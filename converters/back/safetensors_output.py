"""Writer of safetensors files whose header keeps the given order of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.atomic import atomic_write
from converters.checkpoint.dtypes import SAFETENSORS_CODES
from converters.checkpoint.pytree import PytreeLeaf
from converters.checkpoint.reader import TensorInfo
from converters.errors import UnsupportedDtypeError
from converters.output.layouts import FileLayoutBuilder
from converters.output.write import write_layout
from converters.safetensors_header import safetensors_header


@dataclass(frozen=True)
class TensorEntry:
    """Tensor to write: its key, its shape and dtype, and a function that reads it."""

    key: str
    info: TensorInfo
    read: Callable[[], np.ndarray[Any, Any]]


def write_safetensors(
    path: Path,
    entries: Sequence[TensorEntry],
    metadata: Mapping[str, str],
    *,
    overwrite: bool = False,
) -> None:
    """Write small tensors atomically; the header lists them in the given order.

    Raises:
        OutputError: the output exists and may not be overwritten, or the disk refuses.
        UnsupportedDtypeError: safetensors lacks an element type.
    """
    with atomic_write(path, overwrite=overwrite) as file:
        file.writelines(_stretches(entries, metadata))


def safetensors_bytes(entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> bytes:
    """Return the content of such a file.

    Raises:
        UnsupportedDtypeError: safetensors lacks an element type.
    """
    return b"".join(_stretches(entries, metadata))


def _stretches(
    entries: Sequence[TensorEntry], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    start, ordered = _start({entry.key: entry.info for entry in entries}, metadata)
    by_key = {entry.key: entry for entry in entries}
    yield start
    for key in ordered:
        entry = by_key[key]
        array = entry.read()
        if array.shape != entry.info.shape or array.dtype.name != entry.info.dtype:
            # The header is already written: a file that contradicts it must not be completed.
            raise RuntimeError(f"{key}: announced {entry.info}, got {array.shape} {array.dtype}")
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def write_leaves(
    path: Path,
    leaves: Sequence[PytreeLeaf],
    metadata: Mapping[str, str],
    *,
    overwrite: bool = False,
) -> None:
    """Write large tensors: in slabs, on all cores, in bounded memory.

    Raises:
        OutputError: the output exists and may not be overwritten, or the disk refuses.
        UnsupportedDtypeError: safetensors lacks an element type.
    """
    start, ordered = _start({leaf.path: leaf.info for leaf in leaves}, metadata)
    by_key = {leaf.path: leaf for leaf in leaves}
    builder = FileLayoutBuilder()
    builder.add(start)
    for key in ordered:
        builder.add_leaf(by_key[key], [builder.reserve(0, by_key[key].info.nbytes)])
    write_layout(path, builder.layout(), overwrite=overwrite)


def _start(infos: Mapping[str, TensorInfo], metadata: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Return the bytes before the tensors, and the order of the tensors."""
    for key, info in infos.items():
        if info.dtype not in SAFETENSORS_CODES:
            raise UnsupportedDtypeError(
                f"{key} has the element type {info.dtype}, which safetensors lacks",
                "write a .pt file instead",
            )
    return safetensors_header(infos, metadata)
