"""The comparison with one device finds arrays that the order of sums does not explain."""

from __future__ import annotations

import numpy as np
import pytest

from migrate.port.mesh.child import judged
from migrate.port.mesh.prove import batch_of, meshes
from migrate.port.mesh.results import MeshRun
from migrate.port.mesh.rules import PartitionRule

RANDOM = np.random.default_rng(0)
EXACT = RANDOM.standard_normal((64, 64))
ALONE = EXACT * (1 + 1e-7 * RANDOM.standard_normal((64, 64)))


def share(both: np.ndarray) -> float:
    return judged({"x": EXACT}, {"x": ALONE}, {"x": both})["x"]


def test_another_order_of_sums_is_equal() -> None:
    assert share(EXACT * (1 + 1e-7 * RANDOM.standard_normal((64, 64)))) < 1


def test_a_share_that_is_missing_differs() -> None:
    assert share(EXACT * 7 / 8) > 1e5


def test_an_error_of_ten_times_that_of_one_device_differs() -> None:
    assert share(EXACT * (1 + 1e-6 * RANDOM.standard_normal((64, 64)))) > 1


def test_a_number_that_is_not_finite_differs() -> None:
    both = ALONE.copy()
    both[0, 0] = np.nan
    assert share(both) == np.inf


def test_integers_have_to_be_equal() -> None:
    numbers = {"x": np.arange(4)}
    assert judged(numbers, numbers, {"x": np.arange(4)})["x"] == 0
    assert judged(numbers, numbers, {"x": np.arange(4)[::-1]})["x"] == np.inf


def test_a_run_that_differs_does_not_match() -> None:
    assert MeshRun("data=8", output=0.5, gradient=0.5).matches
    assert not MeshRun("data=8", output=0.5, gradient=1.5).matches
    assert not MeshRun("data=8", error="raises").matches


@pytest.mark.parametrize(("wide", "matches"), [(1e-9, True), (0.01, False), (1.5, False)])
def test_float64_decides_what_differs_in_float32(wide: float, matches: bool) -> None:
    run = MeshRun("tensor=8", gradient=1.1, worst="params/b", wide=wide)
    assert run.matches == matches
    assert run.verdict == ("match, as float64 decides" if matches else "differs (params/b)")
    assert MeshRun("tensor=8", gradient=1.1, wide=wide, error="raises").matches is False


def test_meshes_divide_what_the_rules_divide() -> None:
    rules = [
        PartitionRule("a", ("fsdp", "tensor"), ""),
        PartitionRule("b", ("expert", "fsdp", None), ""),
    ]
    found = meshes(rules, {"fsdp": 64, "tensor": 4, "expert": 4})
    assert found == [
        {"data": 8},
        {"fsdp": 8},
        {"data": 2, "tensor": 4},
        {"data": 2, "expert": 4},
        {"data": 2, "fsdp": 2, "tensor": 2},
        {"fsdp": 2, "tensor": 2, "expert": 2},
    ]


def test_a_batch_has_a_row_for_each_device() -> None:
    rows = [{"x": RANDOM.standard_normal((2, 3)), "table": np.ones((5, 2))} for _ in range(3)]
    batch = batch_of(rows, ("table",))
    assert batch["x"].shape == (8, 3)
    assert batch["table"].shape == (5, 2)
    assert (batch["x"][2:4] == rows[1]["x"]).all()
