"""Dtypes as JAX has them by default, with 32 bits for each number."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def narrow_name(dtype: str) -> str:
    """Name of the dtype that JAX has by default in place of a dtype."""
    return _NARROW.get(dtype, dtype)


def narrow(array: Array) -> Array:
    """The array in JAX's default dtype; the array itself if it has that."""
    return array.astype(narrow_name(array.dtype.name), copy=False)
