"""Which outputs of two models belong together, and when they are the same."""

from __future__ import annotations

import numpy as np
import pytest

from migrate.parity.fitting.outputs import compare_outputs
from migrate.parity.fitting.stirred import stirred

ONE, OTHER = (np.random.default_rng(seed).normal(size=(4, 4)) for seed in (0, 1))


def test_the_same_names_belong_together_even_where_others_are_nearer() -> None:
    found = compare_outputs({"0": ONE, "1": OTHER}, {"0": OTHER, "1": ONE})
    assert found.pairs == {"0": "0", "1": "1"}
    assert found.apart is not None
    assert found.apart > 0.1


def test_other_names_are_paired_by_values_and_what_is_left_counts() -> None:
    found = compare_outputs({"a": ONE, "b": OTHER}, {"0": OTHER, "1": ONE + 1})
    assert found.pairs == {"b": "0", "a": "1"}
    assert found.apart is not None
    assert found.apart > 0.1


def test_a_square_output_that_is_turned_is_another() -> None:
    found = compare_outputs({"": ONE}, {"": ONE.T})
    assert found.apart is not None
    assert found.apart > 0.1


def test_channels_last_are_the_same() -> None:
    images = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    assert compare_outputs({"": images}, {"x": np.moveaxis(images, 1, -1)}).apart == 0.0


def test_whole_numbers_alone_prove_nothing() -> None:
    tokens = np.arange(6)
    assert compare_outputs({"": tokens}, {"": tokens}).apart is None


def test_an_output_that_one_model_lacks_is_told() -> None:
    found = compare_outputs({"a": ONE, "b": OTHER}, {"": ONE})
    assert found.apart == 0.0
    assert found.alone == ("torch's output b",)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_equal_weights_differ_once_they_are_stirred(name: str) -> None:
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name, name))
    state = {key: np.ones(5, dtype) for key in ("a", "b", "tied", "running_var", "table")}
    state["count"] = np.ones((), np.int64)
    made = stirred(state, [["a", "tied"]], {"table"})
    assert not np.array_equal(made["a"], made["b"])
    assert np.array_equal(made["a"], made["tied"])
    assert np.array_equal(made["table"], state["table"])
    assert made["count"] == 1
    assert (made["running_var"].astype(np.float64) > 0).all()
    assert {array.dtype for key, array in made.items() if key != "count"} == {dtype}
