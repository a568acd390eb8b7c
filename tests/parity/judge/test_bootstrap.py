"""ρ and its interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from migrate.parity.ground.results import Ratio
from migrate.parity.judge.bootstrap import ratio

Draw = np.ndarray[Any, Any]

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


def of(logs: Draw) -> Ratio:
    found = ratio(list(np.exp(logs) * 1e-6), [1e-6] * len(logs), floor=1e-30)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(0, 0.4, 8),
        lambda rng: rng.laplace(0, 0.3, 8),
        lambda rng: 0.2 * rng.standard_t(3, 8),
        lambda rng: 0.4 * (rng.exponential(size=8) - 1),
    ],
    ids=["normal", "laplace", "t", "skewed"],
)
def test_the_interval_of_8_inputs_covers_the_true_ratio(
    draw: Callable[[np.random.Generator], Draw],
) -> None:
    """By percentiles 84 to 88 % would be covered, and up to 7 % of the lower bounds above."""
    rng, count = np.random.default_rng(0), 1000
    found = [of(draw(rng)) for _ in range(count)]
    assert 0.91 < sum(one.low <= 1 <= one.high for one in found) / count < 0.98
    assert sum(one.low > 1 for one in found) / count < 0.05


def test_the_interval_is_no_wider_than_the_inputs() -> None:
    for count in (1, 2, 3, 5):
        logs = np.random.default_rng(count).normal(size=count)
        found = of(logs)
        assert math.exp(logs.min()) * 0.999 <= found.low <= found.value * 1.001
        assert found.value * 0.999 <= found.high <= math.exp(logs.max()) * 1.001


def test_one_input_of_8_that_is_far_off_blames_nobody() -> None:
    """Seven alike and one 1000 times worse: of the mean one cannot say that it is above 2."""
    found = of(np.log([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1000.0]))
    assert found.value > 2
    assert found.low < 2
