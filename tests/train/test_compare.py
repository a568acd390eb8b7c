"""Verdicts on a program's values beside the recorded ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from migrate.train.proof.compare import compare

UPDATES = [{"micro": [{"loss": 2.0}, {"loss": 3.0}], "rates": [0.1]}]


def values() -> tuple[dict[str, Any], dict[str, Any]]:
    """What a right program gives, and what is expected of it."""
    rng = np.random.default_rng(0)
    weight, gradient = rng.normal(size=(2, 40))
    expected = {"gradient:net/w": gradient, "first:params/net/w": weight}
    results = {
        **{name: value.copy() for name, value in expected.items()},
        "losses:0": np.array([2.0, 3.0]),
        "rate:0": np.float64(0.1),
    }
    return results, expected


def verdicts(results: dict[str, Any], expected: dict[str, Any]) -> dict[str, bool]:
    """Name of each comparison → whether it holds."""
    return {
        c.name: c.same for c in compare(results, expected, UPDATES, [u["rates"] for u in UPDATES])
    }


def test_equal_values_are_the_same() -> None:
    assert set(verdicts(*values()).values()) == {True}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("gradient:net/w", "gradients"),
        ("losses:0", "losses"),
        ("rate:0", "learning rates"),
        ("first:params/net/w", "weights"),
    ],
)
def test_each_value_is_compared(key: str, name: str) -> None:
    results, expected = values()
    results[key] = results[key] * 1.001
    assert [n for n, same in verdicts(results, expected).items() if not same] == [name]


def test_a_value_that_is_no_number_differs() -> None:
    results, expected = values()
    results["losses:0"][1] = np.nan
    results["gradient:net/w"][0] = np.nan
    wrong = verdicts(results, expected)
    assert not wrong["losses"]
    assert not wrong["gradients"]


def test_weights_whose_gradient_is_rounding_are_left_out_and_counted() -> None:
    results, expected = values()
    expected["gradient:net/w"][3] = results["gradient:net/w"][3] = 1e-12
    results["first:params/net/w"][3] += 0.1
    weights = [
        c
        for c in compare(results, expected, UPDATES, [u["rates"] for u in UPDATES])
        if c.name == "weights"
    ]
    assert weights[0].same
    assert "1 elements" in weights[0].what
