"""Casts of an array's element type with correct rounding, and counts of non-finite values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import EXTENDED, is_known, numpy_dtype
from converters.errors import CastError

_CHUNK = 1 << 20  # elements per block
FLOATING = frozenset({"float16", "float32", "float64"}) | EXTENDED
Array = np.ndarray[Any, Any]


def cast(array: Array, dtype: str) -> Array:
    """Return the array with another floating-point type, rounded to nearest, ties to even.

    Integers, bools and complex numbers are unchanged, because counters, masks and positions must
    not be rounded. Values that the type cannot represent become infinite (NaN in types without
    infinities); `overflows` counts them. An array that already has the type is returned itself.

    Args:
        array: an array of any shape, including ml_dtypes' types.
        dtype: "float32", "bfloat16", "float8_e4m3fn", …

    Raises:
        CastError: the type is not a floating-point type.
    """
    require_floating(dtype)
    source = array.dtype.name
    if source not in FLOATING or source == dtype:
        return array
    target = numpy_dtype(dtype, "the array")
    result = np.empty(array.shape, target)
    # ml_dtypes first rounds a float64 to float32; a second rounding may then go the wrong way.
    twice = source == "float64" and dtype in EXTENDED
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for place in _blocks(array.shape):
            part = array[place]
            result[place] = (_rounded_to_odd(part) if twice else part).astype(target)
    return result


def require_floating(dtype: str) -> None:
    """Check that the type is a floating-point type, the only kind to cast to.

    Raises:
        CastError: the type is not a floating-point type.
    """
    if dtype not in FLOATING:
        problem = "is not a floating-point type" if is_known(dtype) else "is not an element type"
        raise CastError(f"{dtype[:40]!a} {problem}", f"choose one of {', '.join(sorted(FLOATING))}")


def overflows(before: Array, after: Array) -> int:
    """Return the number of finite values that are not finite after a cast."""
    if before.dtype == after.dtype or before.dtype.name not in FLOATING:
        return 0
    return sum(
        int(np.count_nonzero(np.isfinite(before[place]) & ~np.isfinite(after[place])))
        for place in _blocks(before.shape)
    )


def nonfinite(array: Array) -> tuple[int, int]:
    """Return the number of NaN elements and of infinite elements. A complex number with either counts.

    It needs a few MB in addition to the array, whatever its size.
    """
    if array.dtype.name not in FLOATING and array.dtype.kind != "c":
        return 0, 0
    nans = infinite = 0
    for place in _blocks(array.shape):
        part = array[place]
        if not np.all(np.isfinite(part)):
            missing = int(np.count_nonzero(np.isnan(part)))
            nans += missing
            infinite += int(np.count_nonzero(~np.isfinite(part))) - missing
    return nans, infinite


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield slices that cover an array of this shape in small blocks."""
    size = 1
    for side in reversed(shape):
        size *= side
    if size <= _CHUNK:
        yield (slice(None),) * len(shape)
        return
    inner = size // shape[0]
    if inner > _CHUNK:
        for row in range(shape[0]):
            for rest in _blocks(shape[1:]):
                yield (slice(row, row + 1), *rest)
        return
    step = max(1, _CHUNK // inner)
    for row in range(0, shape[0], step):
        yield (slice(row, row + step), *(slice(None),) * (len(shape) - 1))


def _rounded_to_odd(values: Array) -> Array:
    """Return float64 values as float32, truncated, with the last bit set if the truncation lost something.

    Rounding the result to a type with fewer bits gives the same as rounding the float64 (Boldo and
    Melquiond, "When double rounding is odd", 2005).
    """
    near = values.astype(np.float32)
    back = near.astype(np.float64)
    bits = np.atleast_1d(near.view(np.uint32) if near.ndim else near.reshape(1).view(np.uint32))
    finite = np.isfinite(values)
    beyond = np.atleast_1d(finite & (np.abs(back) > np.abs(values)))
    bits = bits - beyond  # one step towards zero; infinity becomes the largest number
    lost = np.atleast_1d(finite & (back != values))
    return (bits | lost).astype(np.uint32).view(np.float32).reshape(values.shape)
