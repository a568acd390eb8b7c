"""Errors are what their formulas say, whatever the layout, the size and what is not finite."""

from __future__ import annotations

import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from migrate.parity.judge.metrics import EDGES, Measurement, errors, floating, is_mask, ulps

RNG = np.random.default_rng(0)
T = RNG.standard_normal((4, 50, 70))
X = (T + 1e-3 * RNG.standard_normal(T.shape)).astype(np.float32)


def test_the_formulas() -> None:
    found = errors([T], [X], dtype="float32")
    difference = X.astype(np.float64) - T
    assert found.relative_l2 == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(T))
    assert found.max_over_rms == pytest.approx(np.abs(difference).max() / math.sqrt((T**2).mean()))
    cosine = (X * T).sum() / (np.linalg.norm(X) * np.linalg.norm(T))
    assert found.cosine == pytest.approx(float(cosine))
    assert found.elements == T.size
    assert found.ulps is None


def test_inputs_are_told_apart() -> None:
    found = errors([T[:1], T[1:2], T[2:]], [X[:1], T[1:2], X[2:]], dtype="float32")
    assert found.per_input[1] == 0
    assert found.per_input[0] == errors([T[:1]], [X[:1]], dtype="float32").relative_l2
    assert found.elements == T.size


@pytest.mark.parametrize("axes", [(2, 0, 1), (1, 0, 2), (0, 2, 1)])
def test_the_layout_in_memory_changes_nothing(axes: tuple[int, ...]) -> None:
    plain = errors([T], [X], dtype="float32")
    moved = errors([T.transpose(axes)], [np.ascontiguousarray(X.transpose(axes))], dtype="float32")
    assert moved.relative_l2 == pytest.approx(plain.relative_l2, rel=1e-12)
    # The largest error is exact; the RMS that it is divided by is a sum, in another order.
    assert moved.max_over_rms == pytest.approx(plain.max_over_rms, rel=1e-12)


def test_a_big_tensor_is_not_copied_whole() -> None:
    t, x = np.ones((4000, 1000)), np.ones((4000, 1000), np.float32)
    tracemalloc.start()
    errors([t.T], [x.T], dtype="float32")
    errors([t], [x], dtype="float32")
    assert tracemalloc.get_traced_memory()[1] < 4e6  # of 32 MB
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("dtype", "bits"), [("float64", 53), ("float32", 24), ("float16", 11), ("bfloat16", 8)]
)
def test_units_in_the_last_place(dtype: str, bits: int) -> None:
    """0 for what is rounded correctly, 1 for its neighbor, over magnitudes and down to subnormals."""
    kind = floating(dtype)
    assert kind is not None
    assert kind.bits == bits
    exact = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = np.array([1.0, 1.5, 3.14159, 1000.3, 1e-3, -7.7, 2.0**-14, 2.0**-20])
    fitting = values.astype(exact)
    assert ulps(values, fitting.astype(np.float64), dtype).max() == 0
    above = np.nextafter(fitting, np.array(np.inf, exact)).astype(np.float64)
    assert ulps(values, above, dtype).tolist() == [1.0] * len(values)
    # Correctly rounded from float64 at once: not twice, through float32.
    tie = np.array([1 + 2.0**-bits + 2.0**-52]) if bits < 53 else np.array([1.0])
    if bits < 53:
        assert ulps(tie, np.array([1 + 2.0 ** (1 - bits)]), dtype) == 0
    assert kind.roundoff == 2.0**-bits


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_error_of_a_correct_rounding(dtype: str) -> None:
    """Which is the floor of ρ: 0.38 to 0.43 u."""
    kind = floating(dtype)
    assert kind is not None
    exact = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for values in (RNG.standard_normal(20000), RNG.random(20000)):
        found = errors([values], [values.astype(exact).astype(np.float32)], dtype=dtype)
        assert 0.9 < found.relative_l2 / kind.rounding_error < 1.1


def test_units_in_the_last_place_of_an_elementwise_operation() -> None:
    found = errors([T], [T.astype(np.float32)], dtype="float32", elementwise=True)
    assert found.ulps == 0
    assert errors([T > 0], [T > 0], dtype="bool", elementwise=True).ulps is None
    with pytest.raises(ValueError, match="int32 has no units"):
        ulps(T, T, "int32")


def test_shapes_that_differ_are_an_error() -> None:
    with pytest.raises(ValueError, match="shapes"):
        errors([T], [X[:2]], dtype="float32")


def test_nan_that_the_truth_has_not() -> None:
    x = X.copy()
    x[0, 0, :3] = np.nan, np.inf, -np.inf
    found = errors([T], [x], dtype="float32")
    assert found.not_finite == 3
    assert found.relative_l2 == found.max_over_rms == found.per_input[0] == math.inf
    assert 0.9 < found.cosine < 1


def test_nan_on_both_sides_is_told() -> None:
    t, x = T.copy(), X.copy()
    t[0, 0, :3] = x[0, 0, 1:3] = np.nan
    x[0, 0, 3] = np.nan
    found = errors([t], [x], dtype="float32")
    assert (found.undefined, found.filled, found.not_finite) == (3, 1, 1)
    nothing = errors([np.full(4, np.nan)], [np.full(4, np.nan)], dtype="float32")
    assert (nothing.undefined, nothing.relative_l2, nothing.elements) == (4, 0, 4)


def test_infinities_that_both_have_agree() -> None:
    t, x = T.copy(), X.copy()
    t[0, 0, :2] = x[0, 0, :2] = np.inf, -np.inf
    assert errors([t], [x], dtype="float32").not_finite == 0
    x[0, 0, :2] *= -1
    assert errors([t], [x], dtype="float32").not_finite == 2


@pytest.mark.parametrize(
    "words", [(-np.inf, -3.4e38), (-1e9, -3.4e38), (np.finfo(float).min, -1e10), (-1e9 + 3.2, -1e9)]
)
def test_masked_elements_agree_whatever_stands_for_them(words: tuple[float, float]) -> None:
    t, x = T.copy(), X.astype(np.float64)
    t[..., :20], x[..., :20] = words
    found = errors([t], [x], dtype="float32")
    rest = errors([T[..., 20:]], [X[..., 20:]], dtype="float32")
    assert found.not_finite == 0
    assert found.relative_l2 == pytest.approx(rest.relative_l2)
    x[0, 0, 0] = 1.0
    assert errors([t], [x], dtype="float32").not_finite == 1


def test_large_negative_numbers_that_are_none_of_these_words_are_numbers() -> None:
    t = np.array([-3.7e9, -2.2e12, 1.0])
    assert errors([t], [t * 1.1], dtype="float64").relative_l2 == pytest.approx(0.1)


def test_masks_of_minus_ten_thousand() -> None:
    mask = np.where(np.eye(70) > 0, 0.0, -1e4)
    assert is_mask(mask)
    assert is_mask(mask.astype(np.float32) * 1e30)
    assert not is_mask(T)
    assert not is_mask(np.zeros(4))
    assert errors([mask], [mask * 1e30], dtype="float32").relative_l2 == 0
    assert errors([mask], [mask[::-1] * 1e30], dtype="float32").relative_l2 > 0.1


def test_a_truth_of_zeros() -> None:
    zeros = np.zeros(5)
    assert errors([zeros], [zeros], dtype="float32").relative_l2 == 0
    assert errors([zeros], [zeros + 1e-30], dtype="float32").relative_l2 == math.inf
    assert errors([zeros], [zeros], dtype="float32").cosine == 1
    assert errors([zeros[:0]], [zeros[:0]], dtype="float32").elements == 0


def test_integers_are_equal_or_not() -> None:
    t = np.arange(100)
    x = t.copy()
    x[:4] += 1000
    assert errors([t], [x], dtype="int64").relative_l2 == pytest.approx(math.sqrt(0.04))
    assert errors([t > 5], [t > 5], dtype="bool").relative_l2 == 0


def test_the_histogram_is_of_errors_over_the_rms() -> None:
    for scale in (1.0, 1e6):
        measured = Measurement("float32", histogram=True)
        measured.add(0, scale * T, scale * (T + 1e-3))
        counts = measured.histogram()
        assert len(counts) == len(EDGES) - 1
        assert sum(counts) == T.size
        place = counts.index(max(counts))
        assert EDGES[place] - 0.26 <= -3 <= EDGES[place + 1] + 0.26
    exact = Measurement("float32", histogram=True)
    exact.add(0, T, T)
    assert exact.histogram()[0] == T.size


def test_the_element_beside_the_largest_error() -> None:
    t = np.array([1.0, 1000.0, 1.0])
    measured = Measurement("float32")
    measured.add(0, t, t * (1 + 1e-6))
    assert measured.beside == pytest.approx(1000 / measured.rms)
