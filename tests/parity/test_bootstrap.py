"""ρ and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from migrate.parity.bootstrap import ratio

FLOOR = 2e-8


def test_the_geometric_mean() -> None:
    found = ratio([2e-6, 8e-6], [1e-6, 1e-6], floor=FLOOR)
    assert found is not None
    assert found.value == pytest.approx(4)
    assert (found.low, found.high) == (pytest.approx(2), pytest.approx(8))


def test_the_same_seed_gives_the_same_interval() -> None:
    errors = list(np.random.default_rng(0).lognormal(size=8) * 1e-6)
    ones = [1e-6] * 8
    first = ratio(errors, ones, floor=FLOOR, seed=3)
    assert first == ratio(errors, ones, floor=FLOOR, seed=3)
    assert first != ratio(errors, ones, floor=FLOOR, seed=4)


def test_what_is_below_the_floor_counts_as_the_floor() -> None:
    found = ratio([1e-9, 0.0], [0.0, 1e-12], floor=FLOOR)
    assert found is not None
    assert (found.value, found.low, found.high) == (1, 1, 1)
    above = ratio([1e-6], [0.0], floor=FLOOR)
    assert above is not None
    assert above.value == above.low == above.high == pytest.approx(50)


def test_what_is_not_finite_is_worst() -> None:
    found = ratio([math.inf, math.nan], [1e-6, 1e-6], floor=FLOOR)
    assert found is not None
    assert found.low > 1e20
    both = ratio([math.inf], [math.inf], floor=FLOOR)
    assert both is not None
    assert both.value == 1


def test_nothing_to_compare() -> None:
    assert ratio([], [], floor=FLOOR) is None
    assert ratio([1e-6], [1e-6, 1e-6], floor=FLOOR) is None


def test_the_interval_covers_the_true_ratio() -> None:
    """Of 8 inputs: percentile intervals are a little narrow (Efron), so less than 95 %, not much less."""
    covered = above = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        side, emulated = rng.lognormal(0, 0.3, (2, 8)) * 1e-6
        found = ratio(list(1.5 * side), list(emulated), floor=FLOOR, seed=seed)
        assert found is not None
        covered += found.low <= 1.5 <= found.high
        above += found.low > 2
    assert 0.8 < covered / 200 < 0.99
    assert above <= 2
