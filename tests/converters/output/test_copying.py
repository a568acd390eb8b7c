"""Copies in every arrangement hold the same elements; what is not finite is counted; sums notice changes."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from converters.output.copying import copy_arranged
from converters.output.examine import check_sum, count_not_finite


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64", "complex128"])
@pytest.mark.parametrize(
    "shape",
    [(7, 5), (300, 410), (1000, 3), (1, 500, 70), (64, 32, 3, 5), (3, 5, 7, 2, 40), (600, 130, 2)],
)
def test_every_order_of_axes(shape, dtype):
    rng = np.random.default_rng(0)
    array = rng.integers(0, 250, shape).astype(getattr(ml_dtypes, dtype, dtype))
    for axes in itertools.islice(itertools.permutations(range(len(shape))), 0, 120, 5):
        for flips in ((), (0,), tuple(range(len(shape)))):
            source = np.flip(array, flips).transpose(axes)
            target = np.zeros(source.shape, source.dtype)
            copy_arranged(target, source)
            assert np.array_equal(target, source)


@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"],
)
def test_every_bit_pattern_is_counted_as_numpy_counts_it(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bits = np.arange(256**kind.itemsize, dtype=np.uint8 if kind.itemsize == 1 else np.uint16)
    expected = int((~np.isfinite(bits.view(kind).astype(np.float32))).sum())
    assert expected > 0
    assert count_not_finite(bits.view(np.uint8), dtype) == expected


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_wide_types(dtype):
    array = np.zeros(300_000, dtype)
    array[[3, 70_000, 299_999]] = [np.nan, -np.inf, np.inf]
    array[5] = np.finfo(dtype).max
    assert count_not_finite(array.view(np.uint8), dtype) == 3


def test_whole_numbers_are_finite():
    assert count_not_finite(np.full(64, 255, np.uint8), "int32") == 0
    assert count_not_finite(np.full(64, 255, np.uint8), "bool") == 0


def test_sums_notice_what_files_lose():
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 5 * 4096 + 37, dtype=np.uint8)
    whole = check_sum(data)
    assert check_sum(data[3 * 4096 :], check_sum(data[: 3 * 4096])) == whole
    lost = data.copy()
    lost[4096:8192] = 0
    swapped = np.concatenate([data[4096:8192], data[:4096], data[8192:]])
    torn = data.copy()
    torn[-1] ^= 1
    bit = data.copy()
    bit[5000] ^= 64
    assert len({whole, *map(check_sum, (lost, swapped, torn, bit, data[:-1]))}) == 6


def test_a_sum_of_bytes_at_an_odd_address():
    data = np.arange(9000, dtype=np.uint64).view(np.uint8)
    moved = np.empty(data.size + 1, np.uint8)[1:]
    moved[:] = data
    assert check_sum(moved) == check_sum(data)
