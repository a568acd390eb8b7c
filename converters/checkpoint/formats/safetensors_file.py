"""Reader of safetensors: the header is read once, each tensor is a view of the mapped file.

The header is checked as strictly as by the `safetensors` library. In addition, two tensors of the
same name are refused; the library takes the last. The format:
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from converters.checkpoint.dtypes import DTYPE_NAMES, numpy_dtype
from converters.checkpoint.mapped_file import open_file
from converters.checkpoint.reader import (
    COPY_AGAIN,
    Checkpoint,
    TensorInfo,
    is_shape,
    require_names,
)
from converters.checkpoint.source import Source, Window
from converters.errors import CheckpointDamagedError, UnsupportedDtypeError

_LENGTH_BYTES = 8  # the header's length comes first, little endian
_LONGEST_HEADER = 100_000_000  # the library's own limit
_METADATA = "__metadata__"


class _TensorEntry(NamedTuple):
    dtype: str
    shape: Any
    offsets: Any


class SafetensorsFile(Checkpoint):
    """A `.safetensors` file.

    Attributes:
        metadata: the texts under `__metadata__`.

    Raises:
        CheckpointDamagedError: truncated, or not safetensors.
        UnsupportedDtypeError: a tensor's element type has no numpy form.
    """

    keys_in_order = False

    def __init__(self, path: Source) -> None:
        self.source = str(path)
        self._file = open_file(path)
        header, start = self._header()
        self.metadata: dict[str, str] = self._texts(header.pop(_METADATA, {}))
        require_names(path, header)
        self.infos = {}
        self._starts = {}
        ends = []
        for key, entry in header.items():
            info, first, last = self._checked(key, entry)
            self.infos[key] = info
            self._starts[key] = start + first
            if last > first:
                ends.append((first, last))
        self._require_filled(ends, self._file.size - start)
        self._file.rest()

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return the tensor of this key as a read-only view of the file."""
        info = self.infos[key]
        dtype = numpy_dtype(info.dtype, f"{self.source}: {key}")
        return self._file.array(self._starts[key], dtype, info.shape)

    def window(self, key: str) -> Window | None:
        """Return the tensor of this key for reading in parts."""
        info = self.infos[key]
        dtype = numpy_dtype(info.dtype, f"{self.source}: {key}")
        return self._file.window(self._starts[key], dtype, info.shape)

    def prepare(self, key: str) -> None:
        """Begin to read the tensor of this key."""
        start = self._starts[key]
        self._file.prepare(start, start + self.infos[key].nbytes)

    def release(self, key: str) -> None:
        """Release the pages of the tensor."""
        start = self._starts[key]
        self._file.release(start, start + self.infos[key].nbytes)

    def _header(self) -> tuple[dict[str, Any], int]:
        """Return the header, and the offset of the tensors."""
        if self._file.size < _LENGTH_BYTES:
            raise self._damaged("it is too short for a header")
        length = int.from_bytes(self._file.copy(0, _LENGTH_BYTES), "little")
        end = _LENGTH_BYTES + length
        if length > _LONGEST_HEADER or end > self._file.size:
            raise self._damaged(f"it announces a header of {length} bytes")
        try:
            header = json.loads(
                self._file.copy(_LENGTH_BYTES, end).decode(), object_pairs_hook=_entry_or_dict
            )
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)[:120]) from None
        if not isinstance(header, dict):
            raise self._damaged("its header is not an object")
        return header, end

    def _texts(self, metadata: Any) -> dict[str, str]:
        if not isinstance(metadata, dict) or not all(
            isinstance(value, str) for value in metadata.values()
        ):
            raise self._damaged("its metadata are not texts")
        return metadata

    def _checked(self, key: str, entry: Any) -> tuple[TensorInfo, int, int]:
        if (
            not isinstance(entry, _TensorEntry)
            or not is_shape(entry.shape)
            or not is_span(entry.offsets)
        ):
            raise self._damaged(f"the entry of {key[:160]} is none")
        if entry.dtype not in DTYPE_NAMES:
            raise UnsupportedDtypeError(
                f"{self.source}: {key[:160]} has the element type {entry.dtype[:40]!a}, which cannot "
                "be converted",
                "cast it before saving the checkpoint",
            )
        info = TensorInfo(tuple(entry.shape), DTYPE_NAMES[entry.dtype])
        first, last = entry.offsets
        if info.nbytes != last - first:
            raise self._damaged(f"{key[:160]} has {last - first} bytes, its shape {info.nbytes}")
        return info, first, last

    def _require_filled(self, spans: list[tuple[int, int]], size: int) -> None:
        """Check that the tensors fill the file, each byte once."""
        end = 0
        for first, last in sorted(spans):
            if first != end:
                raise self._damaged("its tensors overlap, or leave gaps")
            end = last
        if end != size:
            raise self._damaged(f"its tensors have {end} bytes, the file {size}")

    def _damaged(self, reason: str) -> CheckpointDamagedError:
        return CheckpointDamagedError(
            f"{self.source} is truncated or not safetensors ({reason})", COPY_AGAIN
        )


def is_span(value: object) -> bool:
    """Whether the value is a pair of offsets in ascending order."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and type(value[0]) is int
        and type(value[1]) is int
        and 0 <= value[0] <= value[1]
    )


def first_duplicate(pairs: list[tuple[str, Any]]) -> str:
    """Return the first name that occurs twice."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    raise ValueError("no name is there twice")


def _entry_or_dict(pairs: list[tuple[str, Any]]) -> Any:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError(f"{first_duplicate(pairs)[:80]!a} is there twice")
    if len(entries) == 3 and isinstance(entries.get("dtype"), str):
        shape, offsets = entries.get("shape"), entries.get("data_offsets")
        if isinstance(shape, list) and isinstance(offsets, list):
            return _TensorEntry(entries["dtype"], shape, offsets)
    return entries
