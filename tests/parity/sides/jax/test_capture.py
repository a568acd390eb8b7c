"""Layers of Flax models as they run, and fed with the truth's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from migrate.parity.dump.dump import Dump
from migrate.parity.dump.reference import Forced
from migrate.parity.ground.errors import InputsError, ParityError
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.sides.jax.runner import JaxRunner
from tests.parity.sides.jax.jax_sides import (
    Net,
    NnxNet,
    Stack,
    dump,
    errors,
    given,
    relative,
    same_model,
    tanh_of,
    truth_and_local,
    values,
)

FLOAT32 = 5e-7
CLEAN, FAULTY = (1e-6,) * 3, (1e-6, 1e-2, 1e-6)


def stack(epsilons: tuple[float, ...]) -> JaxRunner:
    return JaxRunner(Stack(epsilons), "linen", "model.py:Stack")


@dataclass(frozen=True)
class Linen:
    """Dumps of a clean stack of blocks, and of one whose second LayerNorm has another eps."""

    truth: Dump
    clean: Dump
    faulty: Dump
    faulty_plain: Dump


@pytest.fixture(scope="module")
def linen(tmp_path_factory: pytest.TempPathFactory) -> Linen:
    folder = tmp_path_factory.mktemp("linen")
    inputs = given(folder / "inputs", 2, x=(2, 5, 8))
    truth, clean = truth_and_local(stack(CLEAN), stack(CLEAN), inputs, folder)
    forced = Forced(truth.folder, same_model(truth))
    runner = stack(FAULTY)
    runner.load_weights(folder / "weights.safetensors")
    faulty = dump(runner, inputs, folder / "faulty", forced=forced)
    return Linen(truth, clean, faulty, dump(runner, inputs, folder / "plain"))


def test_a_linen_layer_is_told_with_its_weights_settings_and_lines(linen: Linen) -> None:
    made = linen.faulty_plain
    norm = made.layers["block_0.LayerNorm_0"]
    assert norm.kind == "LayerNorm"
    assert norm.parent == "block_0"
    assert norm.weights == (
        "params/block_0/LayerNorm_0/bias",
        "params/block_0/LayerNorm_0/scale",
    )
    assert norm.settings["epsilon"] == 1e-6
    assert norm.settings["dtype"] is None
    assert norm.defined.split(":")[0].endswith("flax/linen/normalization.py")
    assert norm.called.split(":")[0].endswith("tests/parity/sides/jax/jax_sides.py")
    assert (
        made.layers["block_0"].called.split(":")[0].endswith("tests/parity/sides/jax/jax_sides.py")
    )
    assert (made.layers[""].parent, made.layers[""].called) == (None, "")
    calls = [call for call in made.calls if call.input == 1]
    assert calls[0].layer == "block_0.LayerNorm_0"
    assert [call.layer for call in calls[-3:]] == ["block_2.Dense_0", "block_2", ""]
    assert [call.order for call in calls] == list(range(len(calls)))
    assert [ref.path for ref in calls[-1].arguments] == ["x"]


def test_fed_with_the_truth_each_linen_layer_has_its_own_error_only(linen: Linen) -> None:
    found = errors(linen.truth, linen.clean)
    assert 1e-8 < max(found.values()) < 2e-7
    assert linen.clean.outputs == {}
    assert {ref.dtype for call in linen.truth.calls for ref in call.outputs} == {"float64"}
    assert not [note for note in linen.truth.facts.notes if "not in float64" in note]


def test_fed_with_the_truth_each_nnx_layer_has_its_own_error_only(tmp_path: Path) -> None:
    sides = [JaxRunner(NnxNet(nnx.Rngs(seed)), "nnx", "model.py:NnxNet") for seed in (0, 1)]
    inputs = given(tmp_path / "inputs", 2, x=(2, 5, 8))
    truth, local = truth_and_local(sides[0], sides[1], inputs, tmp_path)
    assert 1e-8 < max(errors(truth, local).values()) < 2e-7


def test_a_fault_shows_in_its_layer_only(linen: Linen) -> None:
    found = errors(linen.truth, linen.faulty)
    assert [name for (name, _), error in found.items() if error > FLOAT32] == [
        "block_1.LayerNorm_0"
    ]
    plain = errors(linen.truth, linen.faulty_plain)
    accumulated = {name for (name, _), error in plain.items() if error > 10 * FLOAT32}
    assert {"block_1", "block_2.Dense_0", ""} <= accumulated
    assert not [name for name in accumulated if name.startswith("block_0")]


def test_arguments_are_written_as_the_caller_gave_them(linen: Linen) -> None:
    (call, _) = linen.faulty.of("block_1.MultiHeadDotProductAttention_0")
    (right, _) = linen.truth.of("block_1.MultiHeadDotProductAttention_0")
    # The norm before it is faulty, yet what its caller went on with was the truth's.
    mine, theirs = (
        one.tensor(ref.arguments[0]) for one, ref in ((linen.faulty, call), (linen.truth, right))
    )
    assert 0 < relative(mine, theirs) < FLOAT32
    assert mine.dtype == np.float32


def test_nnx_layers_have_paths_with_positions_and_count_their_calls(tmp_path: Path) -> None:
    runner = JaxRunner(NnxNet(nnx.Rngs(0)), "nnx", "model.py:NnxNet")
    made = dump(runner, given(tmp_path / "inputs", 1, tokens=(2, 5, 8)), tmp_path / "dump")
    dense = made.layers["blocks.0.dense"]
    assert dense.kind == "Linear"
    assert dense.weights == ("blocks/0/dense/bias", "blocks/0/dense/kernel")
    assert dense.settings["out_features"] == 8
    assert dense.parent == "blocks.0"
    assert [call.number for call in made.of("blocks.0")] == [0, 1]
    assert [call.number for call in made.of("blocks.1.norm")] == [0]
    # x in its signature, tokens among the inputs: given by position, told by the inputs' name.
    (model,) = made.of("")
    assert [ref.path for ref in model.arguments] == ["tokens"]
    assert [ref.path for ref in model.outputs] == ["0", "1"]
    assert set(made.layers["norm"].weights) == {"norm/scale", "norm/bias", "norm/mean", "norm/var"}


def test_a_super_call_is_one_call_and_classes_are_as_before(tmp_path: Path) -> None:
    class Base(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.dense(x)

    class Twice(Base):
        def __call__(self, x: Any) -> Any:
            return 2 * super().__call__(x)

    before = Base.__call__, Twice.__call__, nnx.Linear.__call__
    runner = JaxRunner(Twice(nnx.Rngs(0)), "nnx", "model.py:Twice")
    made = dump(runner, given(tmp_path / "inputs", 1, x=(2, 4)), tmp_path / "dump")
    assert [call.layer for call in made.calls] == ["dense", ""]
    assert before == (Base.__call__, Twice.__call__, nnx.Linear.__call__)


def test_modes_are_those_of_evaluation_and_channels_go_last(tmp_path: Path) -> None:
    runner = JaxRunner(Net(), "linen", "model.py:Net")
    assert runner.arguments() == (("image", True),)
    settings = SideSettings(transposed=("image",))
    inputs = given(tmp_path / "inputs", 1, image=(2, 3, 6, 5))
    runner.prepare(settings, inputs)
    made = dump(runner, inputs, tmp_path / "dump", settings)
    (model,) = made.of("")
    assert model.arguments[0].shape == (2, 6, 5, 3)
    assert {ref.path: ref.shape for ref in model.outputs} == {"features": (2, 4), "logits": (2, 3)}
    (norm,) = made.of("BatchNorm_0")
    (dropout,) = made.of("Dropout_0")
    assert made.tensor(dropout.outputs[0]).min() >= 0
    assert np.array_equal(
        made.tensor(dropout.outputs[0]), np.maximum(made.tensor(norm.outputs[0]), 0)
    )
    with pytest.raises(InputsError, match=r"image: \[2, 4\] has no channels to be put last"):
        dump(runner, given(tmp_path / "flat", 1, image=(2, 4)), tmp_path / "flat", settings)


def test_bfloat16_keeps_statistics_in_float32(tmp_path: Path) -> None:
    runner = JaxRunner(Net(), "linen", "model.py:Net")
    inputs = given(tmp_path / "inputs", 1, image=(2, 6, 5, 3))
    runner.prepare(SideSettings(), inputs)
    half = dump(runner, inputs, tmp_path / "half", SideSettings(dtype="bfloat16"), layers=False)
    right = values(dump(runner, inputs, tmp_path / "truth", TRUTH, layers=False))
    assert {ref.dtype for ref in half.outputs[0]} == {"bfloat16"}
    assert 1e-4 < relative(values(half)["logits"], right["logits"]) < 3e-2


class Shifted(nn.Module):
    """A buffer, which in float32 would make all that follows float32."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x - self.variable("buffers", "mean", jnp.ones, (8,)).value)


def test_buffers_follow_a_bfloat16_run(tmp_path: Path) -> None:
    runner = JaxRunner(Shifted(), "linen", "model.py:Shifted")
    inputs = given(tmp_path / "inputs", 1, x=(3, 8))
    runner.prepare(SideSettings(), inputs)
    half = dump(runner, inputs, tmp_path / "half", SideSettings(dtype="bfloat16"))
    assert {ref.dtype for ref in half.outputs[0]} == {"bfloat16"}
    assert not half.facts.notes


def test_batches_are_cut_and_joined(tmp_path: Path) -> None:
    runner = JaxRunner(nn.Dense(4), "linen", "model.py:Dense")
    inputs = given(tmp_path / "inputs", 1, inputs=(3, 8))
    whole = dump(runner, inputs, tmp_path / "whole")
    rows = dump(runner, inputs, tmp_path / "rows", SideSettings(batch=2))
    assert relative(values(rows)[""], values(whole)[""]) < FLOAT32
    assert [call.number for call in rows.of("")] == [0, 1]


def test_a_function_is_one_layer(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"params/w": np.ones((8, 4), np.float32)}, tmp_path / "weights.safetensors")
    runner = JaxRunner(tanh_of, "jax", "model.py:tanh_of")
    assert runner.arguments() == (("x", True), ("scale", False))
    inputs = given(tmp_path / "inputs", 1, x=(2, 8))
    with pytest.raises(ParityError, match="needs params, which is missing"):
        dump(runner, inputs, tmp_path / "none")
    runner.load_weights(tmp_path / "weights.safetensors")
    made = dump(runner, inputs, tmp_path / "dump")
    assert [(call.layer, call.outputs[0].path) for call in made.calls] == [("", "y")]
    assert "a function has no layers" in made.facts.notes[0]

    def whole(variables: Any, x: Any) -> Any:
        return tanh_of(variables["params"], x)

    named = JaxRunner(whole, "jax", "model.py:whole")
    named.load_weights(tmp_path / "weights.safetensors")
    same = dump(named, inputs, tmp_path / "variables")
    assert np.array_equal(values(same)["y"], values(made)["y"])


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"x": (2, 8), "y": (2, 8)}, "does not take the input y; the model takes: x"),
        ({"x": (2,)}, r"IndexError: .* \(.*jax_sides.py:\d+\)"),
    ],
)
def test_other_inputs_are_told_in_one_line(
    shapes: dict[str, tuple[int, ...]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ParityError, match=said) as caught:
        dump(stack(CLEAN), given(tmp_path / "inputs", 1, **shapes), tmp_path / "dump")
    assert "\n" not in str(caught.value)


def test_what_the_model_raises_is_told_with_its_line(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        raise RuntimeError("no\nway")

    with pytest.raises(ParityError, match=r"f: RuntimeError: no way \(.*test_capture.py:\d+\)"):
        dump(JaxRunner(function, "jax", "f"), given(tmp_path / "in", 1, x=(2,)), tmp_path / "dump")


def test_inputs_are_not_told_by_a_flax_model(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match="--inputs 'x=float32"):
        stack(CLEAN).suggest_inputs(8, 0, tmp_path)


class Float32(nn.Module):
    dtype: Any = jnp.float32

    def setup(self) -> None:
        self.dense = nn.Dense(4, dtype=self.dtype)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(4, dtype=jnp.float32)(self.dense(x))


def test_the_truth_overrides_a_dtype_of_float32_but_not_a_cast(tmp_path: Path) -> None:
    inputs = given(tmp_path / "inputs", 1, x=(2, 4))
    made = dump(JaxRunner(Float32(), "linen", "m"), inputs, tmp_path / "dump", TRUTH)
    assert {ref.dtype for call in made.calls for ref in call.outputs} == {"float64"}

    class Cast(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4)(x).astype(jnp.float32)

    made = dump(JaxRunner(Cast(), "linen", "m"), inputs, tmp_path / "cast", TRUTH)
    assert "not in float64: the model (float32)" in made.facts.notes


def test_what_cannot_run_one_operation_at_a_time_is_told(tmp_path: Path) -> None:
    def only_jitted(x: Any) -> Any:
        if not isinstance(x, jax.core.Tracer):
            raise TypeError("no values, please")
        return 2 * x

    runner = JaxRunner(only_jitted, "jax", "model.py:only_jitted")
    inputs = given(tmp_path / "inputs", 1, x=(2, 4))
    with pytest.raises(ParityError, match=r"no values, please .*; it fails with jax.disable_jit"):
        dump(runner, inputs, tmp_path / "dump")
    assert set(values(dump(runner, inputs, tmp_path / "outputs", layers=False))) == {""}
