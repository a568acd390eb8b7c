"""Casts round to nearest, ties to even, once; what overflows or is not finite is counted."""

import ml_dtypes
import numpy as np
import pytest
import torch

from converters.checkpoint import cast, nonfinite, overflows
from converters.checkpoint.cast import FLOATING
from converters.errors import CastError

TORCH = {name: getattr(torch, name) for name in FLOATING if hasattr(torch, name)}


def numbers(dtype):
    """Values of all sizes, with many that lie half-way between two of a smaller type."""
    generator = np.random.default_rng(0)
    mantissas = 1 + generator.integers(0, 1 << 12, 4000) / (1 << 12)
    exponents = generator.integers(-30, 18, 4000)
    signs = generator.choice([-1.0, 1.0], 4000)
    found = signs * mantissas * 2.0**exponents
    with np.errstate(over="ignore"):
        return np.concatenate([found, [0.0, -0.0, np.inf, -np.inf]]).astype(dtype)


@pytest.mark.parametrize(
    "target", ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"]
)
@pytest.mark.parametrize("source", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_as_torch_rounds(source, target):
    values = numbers(source)
    wide = torch.from_numpy(values.astype(np.float32))
    finite = np.isfinite(values.astype(np.float32))
    ours = cast(values, target)
    assert ours.dtype.name == target
    theirs = wide.to(TORCH[target]).to(torch.float64).numpy()
    exact = ours.astype(np.float64)
    inside = finite & np.isfinite(exact)  # torch saturates some float8 types, or not, by version
    np.testing.assert_array_equal(exact[inside], theirs[inside])
    assert str(exact[-3]) == "-0.0"


@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_float64_is_rounded_once(target):
    one = np.float64(1)
    dtype = getattr(ml_dtypes, target)
    step = float(ml_dtypes.finfo(dtype).eps)
    # A hair above half of a step: float32 cannot hold the hair, and half a step goes to even.
    values = np.array([one + step / 2 + 2.0**-40, one + step / 2 - 2.0**-40, one + step / 2])
    assert cast(values, target).astype(np.float64).tolist() == [1 + step, 1.0, 1.0]
    assert cast(-values, target).astype(np.float64).tolist() == [-1 - step, -1.0, -1.0]
    assert float(cast(np.float64(one + step / 2 + 2.0**-40).reshape(()), target)) == 1 + step


def test_float64_against_the_nearest_of_all_bfloat16():
    generator = np.random.default_rng(1)
    values = generator.standard_normal(2000) * 2.0 ** generator.integers(-140, 120, 2000)
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):  # signalling NaN are among them
        every = every.astype(np.float64)
    every = np.unique(every[np.isfinite(every)])
    at = np.searchsorted(every, values)
    low, high = every[at - 1], every[at]
    nearest = np.where(values - low < high - values, low, high)  # no ties among random numbers
    np.testing.assert_array_equal(cast(values, "bfloat16").astype(np.float64), nearest)


def test_overflow_is_infinite_and_counted():
    values = np.array([1e5, -1e5, 1.0, np.inf, np.nan], np.float32)
    made = cast(values, "float16")
    assert made.tolist()[:4] == [np.inf, -np.inf, 1.0, np.inf]
    assert overflows(values, made) == 2
    assert overflows(values, cast(values, "bfloat16")) == 0
    huge = np.array([1e300, 3.4e38, 3.3e38])
    assert overflows(huge, cast(huge, "bfloat16")) == 2


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "complex64", "float32"])
def test_what_is_not_to_be_rounded_is_given_back(dtype):
    array = np.ones(3, dtype)
    assert cast(array, "float32") is array


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64", "float4", ""])
def test_casts_to_what_is_no_floating_type_are_refused(dtype, refused):
    with refused(CastError, repr(dtype), "choose one of", "bfloat16"):
        cast(np.ones(3, np.float32), dtype)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float8_e5m2", "complex64"])
def test_what_is_not_finite_is_counted(dtype):
    array = np.zeros((3, 700_000), np.float32)
    array[0, :2] = np.nan
    array[2, -3:] = np.inf
    kind = getattr(ml_dtypes, dtype, None) or dtype
    assert nonfinite(array.astype(kind).T) == (2, 3)
    assert nonfinite(np.ones(3, np.int32)) == (0, 0)
    assert nonfinite(np.float32(np.nan).reshape(())) == (1, 0)
    assert nonfinite(np.zeros((0, 5), np.float32)) == (0, 0)
