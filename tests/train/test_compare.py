"""Verdicts on a program's values beside the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.report.text.train import train_as_json
from migrate.train.proof.compare import _rates, compare
from migrate.train.results import TrainComparison, TrainedProgram

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
    return {c.name: c.same for c in compared(results, expected)}


def compared(
    results: dict[str, Any], expected: dict[str, Any], *, divides: bool = True
) -> list[TrainComparison]:
    """Compare one update."""
    rates = [u["rates"] for u in UPDATES]
    return list(compare(results, expected, UPDATES, rates, divides=divides))


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
    weights = [c for c in compared(results, expected) if c.name == "weights"]
    assert weights[0].same
    assert "1 elements" in weights[0].what


def test_a_copy_of_a_weight_whose_gradient_is_rounding_is_left_out() -> None:
    results, expected = values()
    expected["gradient:net/w"][3] = results["gradient:net/w"][3] = 1e-12
    for arrays in (results, expected):
        arrays["gradient:copy/w"] = np.zeros(40)
        arrays["first:params/copy/w"] = arrays["first:params/net/w"].copy()

    def same(element: int) -> bool:
        ours = {**results, "first:params/copy/w": results["first:params/copy/w"].copy()}
        ours["first:params/copy/w"][element] += 0.1
        copies = {"params/copy/w": "params/net/w"}
        every = compare(ours, expected, UPDATES, [[0.1]], divides=True, copies=copies)
        return next(c.same for c in every if c.name == "weights")

    assert same(3)
    assert not same(4)


def test_what_cancels_in_the_sum_of_micro_batches_is_rounding() -> None:
    results, expected = values()
    for arrays in (results, expected):
        arrays["sum:net/w"] = 2 * arrays["gradient:net/w"]
    results["first:params/net/w"][3] += 0.1
    assert not verdicts(results, expected)["weights"]
    for arrays in (results, expected):  # in the first micro-batch alone, it is no rounding
        arrays["sum:net/w"][3] = 1e-12
    assert verdicts(results, expected)["weights"]
    expected["gradient:net/w"][5] = results["gradient:net/w"][5] = 1e-12  # but not in the sum
    results["first:params/net/w"][5] += 0.1
    assert not verdicts(results, expected)["weights"]


def test_a_value_that_is_no_number_is_not_lost_behind_a_later_one() -> None:
    rng = np.random.default_rng(1)
    names = ("gradient:a", "gradient:b", "first:params/a", "first:params/b")
    names = (*names, "last:params/a", "last:params/b")
    expected: dict[str, Any] = {name: rng.normal(size=9) for name in names}
    updates = [{"micro": [{"loss": 2.0}]}, {"micro": [{"loss": 3.0}]}]
    results = {name: value.copy() for name, value in expected.items()}
    results |= {f"losses:{n}": np.array([2.0 + n]) for n in (0, 1)}
    results |= {f"rate:{n}": np.float64(0.1) for n in (0, 1)}
    for name in ("gradient:a", "first:params/a", "last:params/a", "losses:0"):
        results[name][0] = np.nan
    results["rate:0"] = np.float64(np.nan)
    every = list(compare(results, expected, updates, [[0.1], [0.1]], divides=False))
    assert [c.name for c in every] == [
        *("gradients", "losses", "learning rates", "weights", "weights"),
    ]
    assert {c.same for c in every} == {False}
    assert {c.worst for c in every} == {np.inf}
    program = TrainedProgram(Path("p"), (), Path("train.py"), tuple(every))
    assert {c["largest_difference"] for c in train_as_json(program)["comparisons"]} == {"inf"}


def test_an_infinite_gradient_of_the_script_does_not_allow_any_other() -> None:
    results, expected = values()
    expected["gradient:net/w"][0] = np.inf
    assert not verdicts(results, expected)["gradients"]


def test_weights_of_an_optimizer_that_does_not_divide_count_all() -> None:
    results, expected = values()
    expected["gradient:net/w"][3] = results["gradient:net/w"][3] = 1e-12
    results["first:params/net/w"][3] += 0.1
    weights = [c for c in compared(results, expected, divides=False) if c.name == "weights"]
    assert not weights[0].same
    assert "left out" not in weights[0].what


def test_the_programs_own_later_rates_do_not_widen_the_gate_of_weights() -> None:
    results, expected = values()
    results["gradient:net/w"] *= 1 + 1e-6
    results["first:params/net/w"] += 1e-3
    results["rate:1"] = np.float64(1e6)
    assert not verdicts(results, expected)["weights"]


@pytest.mark.parametrize(
    ("ours", "same"), [(1e-3 + 1e-8, True), (1e-3 + 3e-7, False), (0.0, False)]
)
def test_small_rates_may_have_the_rounding_of_the_largest(ours: float, same: bool) -> None:
    rates = [[0.1], [1e-3]]
    results = {"rate:0": np.float64(0.1), "rate:1": np.float64(ours)}
    assert _rates(results, rates).same is same


def test_a_loss_whose_terms_cancel_is_measured_by_its_terms() -> None:
    results, expected = values()
    updates = [{"micro": [{"loss": 1e-4}, {"loss": 1e-3}], "rates": [0.1]}]
    results["losses:0"] = np.array([1e-4 + 2e-6, 1e-3])

    def losses(size: float) -> TrainComparison:
        every = compare(results, expected, updates, [[0.1]], divides=True, size=size)
        return next(c for c in every if c.name == "losses")

    assert not losses(5e-4).same  # terms of nearly its own size do not cancel
    assert not losses(0.1).same
    assert losses(0.5).same
    assert "they cancel" in losses(0.5).what


def test_rounding_beside_an_exact_zero_is_left_out_under_adam() -> None:
    results, expected = values()
    expected["gradient:net/w"][3] = 0.0
    results["gradient:net/w"] = expected["gradient:net/w"].copy()
    results["first:params/net/w"][3] += 0.01
    assert not verdicts(results, expected)[
        "weights"
    ]  # both gradients are zero: the weight must not move
    results["gradient:net/w"][3] = 1e-9
    assert verdicts(results, expected)["weights"]
    results["gradient:net/w"][3] = 1e-3
    assert not verdicts(results, expected)["weights"]


@pytest.mark.parametrize(("first", "same"), [(1e-4, False), (0.1, True)])
def test_a_weight_that_comes_back_is_measured_by_its_way(first: float, same: bool) -> None:
    results, expected = values()
    updates = [*UPDATES, {"micro": [{"loss": 1.0}], "rates": [0.1]}]
    shape = expected["gradient:net/w"].shape
    for arrays in (results, expected):
        arrays["start:params/net/w"] = np.full(shape, 1e-4)
        arrays["first:params/net/w"] = np.full(shape, first)
        arrays["last:params/net/w"] = np.full(shape, 1e-4)
    results |= {"losses:1": np.array([1.0]), "rate:1": np.float64(0.1)}
    results["last:params/net/w"] = results["last:params/net/w"] + 5e-7
    every = compare(results, expected, updates, [[0.1], [0.1]], divides=False)
    assert [c.same for c in every if c.name == "weights"] == [True, same]


@pytest.mark.parametrize(
    ("name", "losses", "keys", "cause"),
    [
        ("random numbers", 8, (4, 4), ""),
        (
            "random numbers",
            8,
            (4, 1),
            "the loss draws the same numbers again: one key for several calls",
        ),
        ("random numbers", 1, (4, 4), "lost random numbers: the loss is the same with every key"),
        ("dropout", 3, (4, 4), ""),
        ("dropout", 3, (4, 1), "dropout draws the same masks again: one key for several calls"),
        ("dropout", 1, (4, 4), "lost dropout: the loss is the same with every key"),
    ],
)
def test_random_numbers_of_a_loss_come_from_other_keys(
    name: str, losses: int, keys: tuple[int, int], cause: str
) -> None:
    results, expected = values()
    counts = {"dropout": np.array((8, 8)), "random numbers": np.array((8, 8))}
    results |= counts | {name: np.array((losses, 8)), "keys": np.array(keys)}
    rates = [[0.1]] * len(UPDATES)
    options = {"divides": False, "noise": True, "dropout": True}
    every = compare(results, expected, UPDATES, rates, **options)
    found = next(comparison for comparison in every if comparison.name == name)
    assert found.cause == cause
    assert found.same == (not cause)


@pytest.mark.parametrize(("shift", "same"), [(0.2, True), (0.01, False), (None, False)])
def test_a_running_mean_may_differ_as_far_as_a_rounded_bias_shifts_it(
    shift: float | None, same: bool
) -> None:
    results, expected = values()
    expected["first:batch_stats/norm/mean"] = np.ones(3)
    results["first:batch_stats/norm/mean"] = np.array([1.0, 1.1, 1.0])
    if shift is not None:
        results["shift-first:batch_stats/norm/mean"] = np.array([0.0, shift, 0.0])
    assert verdicts(results, expected)["weights"] is same


def test_a_statement_that_moves_statistics_is_the_cause_where_nothing_else_differs() -> None:
    results, expected = values()
    expected["first:batch_stats/norm/mean"] = np.ones(3)
    results["first:batch_stats/norm/mean"] = np.zeros(3)
    moved = {"batch_stats/norm/mean": ["train.py:7: sample = net(fixed)"]}

    def weights() -> TrainComparison:
        rates = [u["rates"] for u in UPDATES]
        own = compare(results, expected, UPDATES, rates, divides=True, moved=moved)
        return next(c for c in own if c.name == "weights")

    assert not weights().same
    assert weights().cause.endswith("moves: train.py:7: sample = net(fixed)")
    results["first:params/net/w"][0] += 1
    assert weights().cause == ""


@pytest.mark.parametrize(("shift", "same"), [(1e-7, True), (1e-3, False)])
def test_a_running_mean_counts_beside_its_standard_deviation(shift: float, same: bool) -> None:
    """Its true value may be zero: it is that of weights times something normalized."""
    results, expected = values()
    for arrays, mean in ((results, 1e-9 + shift), (expected, 1e-9)):
        arrays["first:batch_stats/norm/mean"] = np.full(3, mean)
        arrays["first:batch_stats/norm/var"] = np.full(3, 0.9)
    assert verdicts(results, expected)["weights"] == same
