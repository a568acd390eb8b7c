"""Reading safetensors: the header once, each tensor as a view of the mapped file.

The `safetensors` library validates the file (sizes, offsets, overlaps); the values are then taken
from the file's own bytes, because its numpy front end does not know float8 and its torch front end
would need torch where only JAX is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import DTYPE_NAMES, numpy_dtype
from converters.checkpoint.reader import COPY_AGAIN, Checkpoint, TensorInfo
from converters.errors import CheckpointDamagedError, UnsupportedDtypeError

_LENGTH_BYTES = 8  # the header's length, little endian, comes first


class SafetensorsFile(Checkpoint):
    """One `.safetensors` file.

    Raises:
        CheckpointDamagedError: truncated, or not safetensors.
        UnsupportedDtypeError: a tensor's element type has no numpy form.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.source = str(path)
        try:
            with safe_open(path, framework="np"):
                pass  # opening validates the header against the file
        except (SafetensorError, OSError) as error:
            raise CheckpointDamagedError(
                f"{path} is truncated or not safetensors ({error})", COPY_AGAIN
            ) from None
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        header_end = _LENGTH_BYTES + int.from_bytes(self._bytes[:_LENGTH_BYTES].tobytes(), "little")
        header = json.loads(self._bytes[_LENGTH_BYTES:header_end].tobytes())
        header.pop("__metadata__", None)
        self.infos = {
            key: TensorInfo(tuple(entry["shape"]), self._dtype_name(key, entry["dtype"]))
            for key, entry in header.items()
        }
        self._spans = {
            key: tuple(header_end + offset for offset in entry["data_offsets"])
            for key, entry in header.items()
        }

    def _dtype_name(self, key: str, code: str) -> str:
        if code not in DTYPE_NAMES:
            raise UnsupportedDtypeError(
                f"{self.source}: {key} has the element type {code}, which cannot be converted",
                "cast it before saving the checkpoint",
            )
        return DTYPE_NAMES[code]

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """The tensor of this key, a read-only view of the file."""
        start, end = self._spans[key]
        info = self.infos[key]
        dtype = numpy_dtype(info.dtype, f"{self.source}: {key}")
        return np.asarray(self._bytes[start:end]).view(dtype).reshape(info.shape)
