"""A script beside itself, from weights that are a rounding away."""

from __future__ import annotations

import math

import pytest

from migrate.train.proof.stability import STABLE, Echo, cancellation, decided, moved, stability
from migrate.train.results import TrainComparison, limited, stages

LOSSES = [[1.0, 0.9], [0.5, 0.4], [0.2, 0.1]]


def test_the_first_update_that_moves_is_named() -> None:
    echo = [[1.0, 0.9], [0.5001, 0.4], [0.201, 0.1]]
    worst, first = moved(LOSSES, echo, STABLE, 0.0)
    assert first == 2
    assert 4e-3 < worst < 6e-3
    (comparison,) = stability(Echo(worst, first, 3))
    assert comparison.verdict == "amplifies"
    assert "from update 2 on, no other program has its losses" in comparison.what
    assert limited([comparison]) == "amplifies"
    assert stages([comparison]) == {"behavioural": "match, the script amplifies"}


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
    assert not limited([comparison])


def test_losses_that_are_rounding_of_their_terms_hold_no_program() -> None:
    assert cancellation({"rounding": [(3, 2e-6)]}) == ()
    (comparison,) = cancellation({"rounding": [(3, 2e-6), (13, 2e-5), (14, 1.5e-5)]}, "actor")
    assert comparison.verdict == "cancels"
    assert comparison.what.startswith("actor: ")
    assert "at update 13" in comparison.what
    assert comparison.worst == pytest.approx(2e-5)
    assert limited([comparison]) == "cancels"
    assert stages([comparison]) == {"numeric": "match, the script cancels"}
    assert not limited([comparison, TrainComparison("losses", False)])


def test_a_direction_in_which_a_script_hardly_moves_does_not_decide() -> None:
    calm, between, far = Echo(1e-6, None, 9), Echo(2e-4, None, 9), Echo(4e-3, 7, 8)
    assert decided([calm]) == calm
    assert decided([between]) is None
    assert decided([between, calm]) is None
    whole = decided([between, far])
    assert whole == Echo(4e-3, 7, 8, 2)
    (comparison,) = stability(whole)
    assert comparison.verdict == "amplifies"
    assert "8 updates, 2 runs" in comparison.what
    assert decided([between] * 5) == Echo(2e-4, None, 9, 5)
