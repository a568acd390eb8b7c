import itertools

import numpy as np
import pytest

from converters.layers import UNCHANGED, Permute


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
