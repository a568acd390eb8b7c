"""A product, then a layer that one side computes in passing: in a TPU's precision that is no fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from migrate.parity.align.align import align
from migrate.parity.dump.dump import Dump
from migrate.parity.ground.results import LayerVerdict
from migrate.parity.judge.judge import Judged, LayerJudgement, judgement
from migrate.parity.judge.profiles import find_profile
from tests.parity.numpy_model import Array, Model, Run, capture

INPUTS = [np.random.default_rng(seed).standard_normal((3, 5, 8)) for seed in range(8)]
Act = Callable[[Array], Array]


def product(x: Array) -> Array:
    """A product by itself; its factors are rounded, but in the truth."""
    factor = np.random.default_rng(3).standard_normal((8, 8)).astype(x.dtype)
    if x.dtype == np.float64:
        return x @ factor
    return through_bfloat16(x) @ through_bfloat16(factor)


def through_bfloat16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def sigmoid(x: Array) -> Array:
    made: Array = 1 / (1 + np.exp(-x))
    return made


def model(consumer: bool, act: Act | None = None) -> Model:
    """A block with a product and an activation, which is a layer of its own unless `act` is given."""

    def block(run: Run, x: Array) -> Array:
        y = product(x)
        y = run.layer("block.act", "Sigmoid", sigmoid, y) if act is None else act(y)
        if not consumer:
            return y
        made: Array = run.layer("block.twice", "Twice", lambda z: z + z, y)
        return made

    def whole(run: Run, x: Array) -> Array:
        made: Array = run.layer("block", "Block", lambda z: block(run, z), x)
        return made

    return whole


def compared(folder: Path, consumer: bool, act: Act) -> LayerJudgement:
    truth = capture(folder / "t", model(consumer), {}, INPUTS, "float64")

    def side(name: str, made: Model) -> Judged:
        dump: Dump = capture(folder / name, made, {}, INPUTS)
        explicit = {name: name for name in dump.layers if name}
        alignment = align(truth, dump, {}, explicit)
        local = capture(folder / f"{name}-l", made, {}, INPUTS, forced=(truth, alignment))
        return Judged(dump, local, alignment)

    a = side("a", model(consumer))
    return judgement(truth, a, side("b", model(consumer, act)), a, find_profile("tpu-default"))


@pytest.mark.parametrize("consumer", [False, True], ids=["its caller puts it out", "is handed on"])
def test_a_product_before_a_layer_that_a_side_lacks_is_no_fault(
    tmp_path: Path, consumer: bool
) -> None:
    found = compared(tmp_path, consumer, sigmoid)
    assert not found.breaches
    assert all(layer.verdict is not LayerVerdict.B_PARTS for layer in found.layers)


@pytest.mark.parametrize("consumer", [False, True], ids=["its caller puts it out", "is handed on"])
def test_another_activation_there_is_found(tmp_path: Path, consumer: bool) -> None:
    found = compared(tmp_path, consumer, lambda x: sigmoid(x.dtype.type(1.05) * x))
    assert {breach.side for breach in found.breaches} == {"B"}
