"""A script beside itself, from weights that are a rounding away."""

from __future__ import annotations

import math

from migrate.train.proof.stability import STABLE, moved, stability
from migrate.train.results import amplifies, stages

LOSSES = [[1.0, 0.9], [0.5, 0.4], [0.2, 0.1]]


def test_the_first_update_that_moves_is_named() -> None:
    echo = [[1.0, 0.9], [0.5001, 0.4], [0.201, 0.1]]
    worst, first = moved(LOSSES, echo, STABLE, 0.0)
    assert first == 2
    assert 4e-3 < worst < 6e-3
    (comparison,) = stability((worst, first, 3))
    assert comparison.verdict == "amplifies"
    assert "from update 2 on, no other program has its losses" in comparison.what
    assert amplifies([comparison])
    assert stages([comparison]) == {"behavioural": "same, the script amplifies"}


def test_a_small_loss_is_measured_by_the_largest_one() -> None:
    echo = [*LOSSES[:2], [0.2, 0.10009]]
    assert moved(LOSSES, echo, STABLE, 0.0)[1] is None
    assert moved([[1e-4]], [[1.1e-4]], STABLE, 0.0)[1] == 0
    assert moved([[1e-4]], [[1.1e-4]], STABLE, 1.0)[1] is None  # its terms cancel


def test_what_is_no_number_moves() -> None:
    assert moved(LOSSES, [[1.0, float("nan")]], STABLE, 0.0) == (math.inf, 0)


def test_a_second_run_that_fails_is_no_proof() -> None:
    (comparison,) = stability("train.py: ended with exit code 1")
    assert comparison.verdict == "differs"
    assert not amplifies([comparison])
