import itertools

import numpy as np
import pytest

from converters.checkpoint.dtypes import numpy_dtype
from converters.layers import UNCHANGED, Permute
from converters.layers.layout import Plus, Times, chain


@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))))
def test_the_inverse_of_a_permutation_is_derived(axes):
    array = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    layout = Permute(axes)
    moved = layout.apply(array)
    assert moved.shape == layout.shape(array.shape)
    assert moved[tuple([1, 2, 3, 4][axis] for axis in axes)] == array[1, 2, 3, 4]
    np.testing.assert_array_equal(layout.inverse.apply(moved), array)
    assert layout.inverse.inverse == layout


def test_unchanged():
    array = np.arange(6).reshape(2, 3)
    assert UNCHANGED.apply(array) is array
    assert UNCHANGED.shape((2, 3)) == (2, 3)
    assert UNCHANGED.inverse is UNCHANGED


def test_a_wrong_rank_is_an_error():
    with pytest.raises(ValueError, match="2 axes expected"):
        Permute((1, 0)).shape((2, 3, 4))


@pytest.mark.parametrize("axes", [(0, 0), (1, 2), (0, 2, 1, 4)])
def test_what_is_no_permutation(axes):
    with pytest.raises(ValueError, match="not a permutation"):
        Permute(axes)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
def test_a_factor_and_an_offset_are_rounded_once(dtype):
    numbers = np.random.default_rng(0).normal(size=64)
    array = numbers.astype(numpy_dtype(dtype, ""))
    layout = chain([Times(0.3), Plus(1.0)])
    assert layout.computes
    assert not Permute((0,)).computes
    made = Times(0.3).apply(array)
    assert made.dtype == array.dtype
    wide = array.astype(np.complex128 if dtype == "complex64" else np.float64)
    assert (made == (wide * 0.3).astype(array.dtype)).all()
    near = {"bfloat16": 0.02, "float16": 2e-3}.get(dtype, 1e-6)
    back = layout.inverse.apply(layout.apply(array))
    np.testing.assert_allclose(back.astype(wide.dtype), wide, atol=near)


def test_a_power_of_two_comes_back_bit_for_bit():
    array = np.random.default_rng(0).normal(size=64).astype(np.float32)
    layout = Times(0.125)
    assert (layout.inverse.apply(layout.apply(array)) == array).all()
