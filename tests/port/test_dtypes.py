"""Dtypes with JAX's 32 bits."""

from __future__ import annotations

import numpy as np
import pytest

from migrate.port.dtypes import narrow, narrow_name


@pytest.mark.parametrize(
    ("dtype", "narrowed"),
    [
        ("int64", "int32"),
        ("float64", "float32"),
        ("uint64", "uint32"),
        ("complex128", "complex64"),
        ("complex64", "complex64"),
        ("bool", "bool"),
    ],
)
def test_numbers_get_32_bits(dtype: str, narrowed: str) -> None:
    assert narrow_name(dtype) == narrowed
    assert narrow(np.ones(2, dtype)).dtype == narrowed
