"""Which inputs a port is compared on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.port.proof import Arrays, ProofComparison, asked, free_axes, resized, same_sizes
from tests.port.standin import Argument

ARGUMENTS = (Argument("ids", "int64", ("batch", "length")), Argument("scale", "float32", (3,)))


def made(folder: Path, rows: int = 2, length: int = 8) -> InputSet:
    ids = np.arange(rows * length).reshape(rows, length)
    one = {"ids": ids, "scale": np.ones(3, np.float32)}
    return write_inputs(folder, [one, one, one])


def shapes(cases: list[ProofComparison]) -> dict[str, tuple[int, ...]]:
    return {one.name: one.inputs[0]["ids"].shape for one in cases if one.inputs}


def test_every_free_size_has_another_and_the_batch_is_1_once(tmp_path: Path) -> None:
    cases = list(asked(made(tmp_path), ARGUMENTS, lambda _: True))
    assert shapes(cases) == {
        "float32": (2, 8),
        "gradients": (2, 8),
        "the precision of a TPU, emulated": (2, 8),
        "batch 1": (1, 8),
        "batch 3": (3, 8),
        "length 7": (2, 7),
    }
    assert [one.layers for one in cases] == [True, False, True, False, False, False]
    assert [one.precision for one in cases][:3] == ["highest", "highest", "default"]
    assert [one.name for one in cases if one.gradients] == ["gradients"]


def test_a_size_that_the_original_does_not_take_is_another_or_said(tmp_path: Path) -> None:
    def even(arrays: Arrays) -> bool:
        return arrays["ids"].shape[1] % 2 == 0 and arrays["ids"].shape[0] == 2

    cases = list(asked(made(tmp_path), ARGUMENTS, even))
    assert shapes(cases)["length 4"] == (2, 4)
    skipped = {one.name: one.skipped for one in cases if one.skipped}
    assert skipped == dict.fromkeys(
        ("batch 1", "batch 3 or 4"), "the original takes no such inputs"
    )


def test_sizes_that_go_together_are_changed_together(tmp_path: Path) -> None:
    """A mask of half as many frames: no size of its own is taken beside the old input."""
    one = {"x": np.zeros((2, 8, 3), np.float32), "mask": np.ones((2, 4), bool)}
    arguments = (
        Argument("x", "float32", ("batch", "length", 3)),
        Argument("mask", "bool", ("batch", "mask_length")),
    )

    def takes(arrays: Arrays) -> bool:
        return arrays["x"].shape[1] == 2 * arrays["mask"].shape[1]

    cases = list(asked(write_inputs(tmp_path, [one]), arguments, takes))
    resized = [(case.name, case.inputs[0]["x"].shape[1]) for case in cases if "length" in case.name]
    assert resized == [("length 16 with mask_length 8", 16)]


def test_axes_that_only_change_together_have_one_size() -> None:
    arrays: Arrays = {"x": np.zeros((2, 8, 3), np.float32), "mask": np.ones((2, 8), bool)}
    arguments = (
        Argument("x", "float32", ("batch", "length", 3)),
        Argument("mask", "bool", ("batch", "mask_length")),
    )

    def takes(arrays: Arrays) -> bool:
        return arrays["x"].shape[1] == arrays["mask"].shape[1]

    assert same_sizes(arguments, arrays, takes) == (
        "axis 1 of x and axis 1 of mask: the same size",
    )
    assert same_sizes(arguments, arrays, lambda _: True) == ()
    one_name = (arguments[0], Argument("mask", "bool", ("batch", "length")))
    assert same_sizes(one_name, arrays, takes) == ()  # the name says it


def test_a_batch_of_one_is_compared_with_two(tmp_path: Path) -> None:
    cases = list(asked(made(tmp_path, rows=1), ARGUMENTS, lambda _: True))
    assert [name for name in shapes(cases) if name.startswith("batch")] == ["batch 2"]


def test_only_inputs_of_the_first_shape_are_resized(tmp_path: Path) -> None:
    one, other = made(tmp_path / "1")[0], made(tmp_path / "2", length=5)[0]
    both = write_inputs(tmp_path / "both", [one, other, one])
    cases = {case.name: case for case in asked(both, ARGUMENTS, lambda _: True)}
    assert len(cases["float32"].inputs) == 3
    assert [a["ids"].shape for a in cases["length 7"].inputs] == [(2, 7), (2, 7)]


def test_what_is_fixed_has_the_values_of_the_first_input(tmp_path: Path) -> None:
    rows: list[Arrays] = [{"ids": np.full((2, 8), one), "scale": np.full(3, one)} for one in (1, 2)]
    fixed = (ARGUMENTS[0], Argument("scale", "float32", (3,), fixed=True))
    first, *_ = asked(write_inputs(tmp_path, rows), fixed, lambda _: True)
    assert [one["ids"][0, 0] for one in first.inputs] == [1, 2]
    assert [one["scale"][0] for one in first.inputs] == [1, 1]


def test_resizing_repeats_or_cuts() -> None:
    arrays = {"ids": np.array([[1, 2], [3, 4]])}
    axes = free_axes(ARGUMENTS, {"ids": np.ones((2, 3))})
    assert resized(arrays, axes["length"], 3)["ids"].tolist() == [[1, 2, 1], [3, 4, 3]]
    assert resized(arrays, axes["batch"], 1)["ids"].tolist() == [[1, 2]]


def test_sizes_of_one_name_that_differ_are_told_apart() -> None:
    arguments = (Argument("a", "float32", ("side",)), Argument("b", "float32", ("side", "other")))
    given = {"a": np.ones(4), "b": np.ones((5, 6))}
    axes = {"side of a": [("a", 0)], "side of b": [("b", 0)], "other": [("b", 1)]}
    assert free_axes(arguments, given) == axes


def test_rows_of_two_inputs_are_one_size_whatever_they_are_called() -> None:
    arguments = (
        Argument("ids", "int64", ("batch", "length")),
        Argument("mask", "int64", ("width", "length")),
    )
    given = {"ids": np.ones((2, 8)), "mask": np.ones((2, 8))}
    axes = free_axes(arguments, given)
    assert axes == {"batch": [("ids", 0), ("mask", 0)], "length": [("ids", 1), ("mask", 1)]}
