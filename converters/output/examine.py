"""Checks of values as they are written: the number of non-finite values, and a checksum."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# dtype → (unsigned type, the bits without the sign, the smallest non-finite pattern). In every IEEE
# format, infinity and NaN lie above all finite numbers; float8_e4m3fn and e8m0fnu have NaN only.
_NOT_FINITE: dict[str, tuple[Any, int, int]] = {
    "float16": (np.uint16, 0x7FFF, 0x7C00),
    "bfloat16": (np.uint16, 0x7FFF, 0x7F80),
    "float32": (np.uint32, 0x7FFF_FFFF, 0x7F80_0000),
    "float64": (np.uint64, 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    "complex64": (np.uint32, 0x7FFF_FFFF, 0x7F80_0000),
    "complex128": (np.uint64, 0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    "float8_e4m3fn": (np.uint8, 0x7F, 0x7F),
    "float8_e5m2": (np.uint8, 0x7F, 0x7C),
    "float8_e8m0fnu": (np.uint8, 0xFF, 0xFF),
}
_PAGE = 4096
_STEP = 128 * 1024  # bytes per step, so that the masked values stay in the cache


def count_not_finite(data: Array, dtype: str) -> int:
    """Return the number of NaN or infinite values in these bytes (uint8, complete elements)."""
    if dtype not in _NOT_FINITE:
        return 0
    unsigned, mask, limit = _NOT_FINITE[dtype]
    bits = data.view(unsigned)
    step = _STEP // bits.dtype.itemsize
    masked = np.empty(min(step, bits.size), unsigned)
    count = 0
    for start in range(0, bits.size, step):
        some = bits[start : start + step]
        values = np.bitwise_and(some, unsigned(mask), out=masked[: some.size])
        if values.max() >= limit:
            count += int(np.count_nonzero(values >= limit))
    return count


def check_sum(data: Array, before: int = 0) -> int:
    """Return a checksum that detects lost, exchanged and torn pages, at memory speed.

    It is the CRC-32 of the sums of the 64-bit words of every 4096 bytes; a CRC of the bytes
    themselves takes ten times as long. It protects an interrupted conversion against file damage by
    a power cut, not against an adversary.

    Args:
        data: bytes (uint8).
        before: the checksum of the preceding bytes.
    """
    complete = data.size - data.size % _PAGE
    if complete:
        words = data[:complete]
        if words.ctypes.data % 8:
            words = words.copy()
        sums = np.add.reduce(words.view(np.uint64).reshape(-1, _PAGE // 8), axis=1)
        before = zlib.crc32(sums.data, before)
    return zlib.crc32(data[complete:].data, before)
