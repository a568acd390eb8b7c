"""Precision, excess precision and devices of JAX sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import save_file

from migrate.parity.dump.dump import Named
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.settings import TRUTH, Precision, SideSettings
from migrate.parity.sides.jax.runner import JaxRunner
from tests.parity.sides.jax.jax_sides import RANDOM, dump, given, relative, same_model, values

# Of one product, against float64 (docs/parity/precision.md).
LIMITS: dict[Precision, tuple[float, float]] = {
    "default": (1e-3, 5e-3),
    "high": (2e-6, 3e-5),
    "highest": (1e-9, 1e-6),
}


class Two(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(16, name="second")(nn.Dense(16, name="first")(x))


@pytest.mark.parametrize("precision", list(LIMITS))
def test_a_precision_is_emulated_in_the_layers_as_in_the_whole(
    precision: Precision, tmp_path: Path
) -> None:
    runner = JaxRunner(Two(), "linen", "model.py:Two")
    inputs = given(tmp_path / "inputs", 1, x=(8, 64))
    truth = dump(runner, inputs, tmp_path / "truth", TRUTH)
    settings = SideSettings(precision=precision)
    assert runner.facts(settings).emulated == (precision != "highest")
    assert runner.facts(settings).precision == ("" if precision == "highest" else precision)
    made = dump(runner, inputs, tmp_path / "dump", settings)
    low, high = LIMITS[precision]
    for name in ("first", "second"):
        (mine,), (right,) = made.of(name), truth.of(name)
        error = relative(made.tensor(mine.outputs[0]), truth.tensor(right.outputs[0]))
        assert low < error < 2 * high
    assert low < relative(values(made)[""], values(truth)[""]) < 2 * high
    # The same products, one by one or compiled.
    (whole,) = made.of("")
    assert relative(made.tensor(whole.outputs[0]), values(made)[""]) < 1e-2 * low + 1e-7


def test_gradients_are_emulated_too(tmp_path: Path) -> None:
    runner = JaxRunner(Two(), "linen", "model.py:Two")
    inputs = given(tmp_path / "inputs", 1, x=(8, 64))
    (tmp_path / "cotangents").mkdir()
    cotangent = RANDOM(1).standard_normal((8, 16)).astype(np.float32)
    save_file({"output": cotangent}, tmp_path / "cotangents" / "000.safetensors")
    found = []
    for name, settings in (("truth", TRUTH), ("default", SideSettings(precision="default"))):
        runner.gradients(settings, inputs, tmp_path / "cotangents", tmp_path / name)
        found.append(values_of(tmp_path / name / "000.safetensors"))
    truth, one_pass = found
    assert 1e-3 < relative(one_pass["inputs/x"], truth["inputs/x"]) < 1e-2
    assert (
        1e-3
        < relative(one_pass["weights/params/first/kernel"], truth["weights/params/first/kernel"])
        < 1e-2
    )


def values_of(file: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(file)


def test_without_excess_precision_every_operation_rounds(tmp_path: Path) -> None:
    runner = JaxRunner(jax.nn.softmax, "jax", "jax.nn:softmax")
    inputs = given(tmp_path / "inputs", 1, x=(64, 64))
    kept, rounded = (
        dump(
            runner,
            inputs,
            tmp_path / str(excess),
            SideSettings(dtype="bfloat16", excess_precision=excess),
            layers=False,
        )
        for excess in (True, False)
    )
    with jax.disable_jit():
        step_by_step = jax.nn.softmax(jnp.asarray(inputs[0]["x"], jnp.bfloat16))
    assert relative(values(rounded)[""], step_by_step) < 1e-4
    assert relative(values(kept)[""], step_by_step) > 5e-4


def test_what_is_no_dtype_or_device_is_told(tmp_path: Path) -> None:
    runner = JaxRunner(Two(), "linen", "model.py:Two")
    inputs = given(tmp_path / "inputs", 1, x=(8, 64))
    with pytest.raises(ParityError, match="float8: no dtype of a run"):
        dump(runner, inputs, tmp_path / "dump", SideSettings(dtype="float8"))
    with pytest.raises(ParityError, match="JAX has no device cuda"):
        dump(runner, inputs, tmp_path / "dump", SideSettings(device="cuda"))


def test_nothing_is_fed_where_shapes_differ(tmp_path: Path) -> None:
    from migrate.parity.dump.reference import Forced

    runner = JaxRunner(Two(), "linen", "model.py:Two")
    inputs = given(tmp_path / "inputs", 1, x=(8, 64))
    truth = dump(runner, inputs, tmp_path / "truth", TRUTH)
    other = given(tmp_path / "other", 1, x=(4, 64))
    forced = Forced(truth.folder, same_model(truth))
    made = dump(runner, other, tmp_path / "dump", forced=forced)
    assert "first: the truth's 0 does not fit ([8, 64] cannot lie as [4, 64])" in made.facts.notes


def test_what_float32_does_not_hold_is_fed_as_its_largest(tmp_path: Path) -> None:
    from migrate.parity.dump.reference import Forced
    from migrate.parity.dump.writer import DumpWriter

    def function(x: Any) -> Any:
        return x

    runner = JaxRunner(function, "jax", "model.py:function")
    inputs = given(tmp_path / "inputs", 1, x=(3,))
    truth = dump(runner, inputs, tmp_path / "truth", TRUTH)
    writer = DumpWriter(tmp_path / "huge", truth.facts, 1)
    huge = [Named("x", np.array([np.finfo(np.float64).min, 1.0, -np.inf]))]
    writer.layer(truth.layers[""])
    writer.call("", 0, 0, 0, writer.given("", 0, 0, huge), [Named("", huge[0].array)])
    writer.close()
    forced = Forced(tmp_path / "huge", same_model(truth))
    made = dump(runner, inputs, tmp_path / "dump", forced=forced)
    (call,) = made.of("")
    found = made.tensor(call.outputs[0])
    assert found.tolist() == [float(np.finfo(np.float32).min), 1.0, -np.inf]
