"""A safetensors file in an order of its own, one tensor in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.atomic import atomic_write
from converters.checkpoint.dtypes import SAFETENSORS_CODES, numpy_dtype
from converters.checkpoint.reader import TensorInfo
from converters.errors import UnsupportedDtypeError


@dataclass(frozen=True)
class Entry:
    """One tensor to write: its key, its shape and dtype, and how to get it."""

    key: str
    info: TensorInfo
    read: Callable[[], np.ndarray[Any, Any]]


def write_safetensors(
    path: Path,
    entries: Sequence[Entry],
    metadata: Mapping[str, str],
    *,
    overwrite: bool = False,
) -> None:
    """Write the tensors, atomically; the header names them in the order in which they are given.

    Raises:
        OutputError: the output exists and may not be overwritten, or the disk refuses.
        UnsupportedDtypeError: safetensors lacks an element type.
    """
    for entry in entries:
        if entry.info.dtype not in SAFETENSORS_CODES:
            raise UnsupportedDtypeError(
                f"{entry.key} has the element type {entry.info.dtype}, which safetensors lacks",
                "write a .pt file instead",
            )
    # Wide types first, as the safetensors library does: every tensor is then aligned in the file.
    ordered = sorted(entries, key=lambda entry: -numpy_dtype(entry.info.dtype, entry.key).itemsize)
    starts: dict[str, int] = {}
    end = 0
    for entry in ordered:
        starts[entry.key] = end
        end += entry.info.nbytes
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    for entry in entries:
        start = starts[entry.key]
        header[entry.key] = {
            "dtype": SAFETENSORS_CODES[entry.info.dtype],
            "shape": list(entry.info.shape),
            "data_offsets": [start, start + entry.info.nbytes],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in ordered:
            array = entry.read()
            if array.shape != entry.info.shape or array.dtype.name != entry.info.dtype:
                # The header is written already: a file that contradicts it must not be completed.
                raise RuntimeError(
                    f"{entry.key}: announced {entry.info}, got {array.shape} {array.dtype}"
                )
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
