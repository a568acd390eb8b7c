"""Layers inside linen's transforms: no one is lost silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from converters.modules.linen.recurrent import LSTM
from migrate.parity.dump.dump import Dump
from migrate.parity.sides.jax.runner import JaxRunner
from tests.parity.sides.jax.jax_sides import dump, errors, given, truth_and_local


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> tuple[Any, None]:
        y = nn.Dense(x.shape[-1], name="inner")(x)
        return x + nn.Dense(x.shape[-1], name="dense")(nn.tanh(y)), None


class Decorated(nn.Module):
    @nn.remat
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(4, name="dense")(x)


class Lifted(nn.Module):
    """Scanned and rematerialized blocks, jit, remat, a recurrent loop, a tied embedding and vmap."""

    @nn.compact
    def __call__(self, tokens: Any) -> dict[str, Any]:
        embed = nn.Embed(7, 4, name="embed")
        x = embed(tokens)
        scanned = nn.scan(
            nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=4
        )
        x, _ = scanned(name="layers")(x, None)
        x = nn.jit(nn.Dense)(4, name="jitted")(x)
        x = Decorated(name="decorated")(x)
        states = nn.RNN(nn.SimpleCell(4, name="cell"), name="loop")(x)
        mapped = nn.vmap(nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True})
        return {"logits": embed.attend(x), "states": states, "y": mapped(3, name="mapped")(x)}


def tokens(folder: Path) -> Any:
    import numpy as np

    from migrate.parity.inputs.set import write_inputs

    random = np.random.default_rng(0)
    return write_inputs(folder, [{"tokens": random.integers(0, 7, (2, 3))} for _ in range(2)])


@pytest.fixture(scope="module")
def lifted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dump, Dump]:
    folder = tmp_path_factory.mktemp("lifted")
    sides = [JaxRunner(Lifted(), "linen", "model.py:Lifted") for _ in range(2)]
    return truth_and_local(sides[0], sides[1], tokens(folder / "inputs"), folder)


def test_a_scanned_layer_is_called_once_for_each_step(lifted: tuple[Dump, Dump]) -> None:
    for made in lifted:
        for name in ("layers", "layers.dense", "layers.inner"):
            calls = [call for call in made.of(name) if call.input == 1]
            assert [call.number for call in calls] == [0, 1, 2, 3]
        assert [call.number for call in made.of("loop.cell") if call.input == 0] == []
        assert len([call for call in made.of("cell") if call.input == 0]) == 3
    scanned = lifted[0].layers["layers"]
    assert (scanned.kind, scanned.parent) == ("Layer", "")
    weights = ("params/layers/dense/bias", "params/layers/dense/kernel")
    assert lifted[0].layers["layers.dense"].weights == weights


def test_each_step_of_a_scan_is_fed_for_itself(lifted: tuple[Dump, Dump]) -> None:
    truth, local = lifted
    found = errors(truth, local)
    assert {name for name, _ in found} >= {"layers", "jitted", "decorated", "loop", "cell", ""}
    assert max(found.values()) < 3e-7


def test_layers_in_jit_and_remat_are_seen(lifted: tuple[Dump, Dump]) -> None:
    for made in lifted:
        for name in ("jitted", "decorated", "decorated.dense"):
            assert len(list(made.of(name))) == 2


def test_a_tied_embedding_is_a_layer_of_its_own(lifted: tuple[Dump, Dump]) -> None:
    made = lifted[0]
    attend = made.layers["embed.attend"]
    assert (attend.kind, attend.weights) == ("Embed.attend", ("params/embed/embedding",))
    assert [call.number for call in made.of("embed") if call.input == 0] == [0]


def test_what_vmap_hides_is_told(lifted: tuple[Dump, Dump]) -> None:
    for made in lifted:
        assert "mapped" not in made.layers
        (note,) = [note for note in made.facts.notes if "vmap" in note]
        assert note.startswith("mapped: ")


def test_functions_of_jax_around_layers(tmp_path: Path) -> None:
    class Direct(nn.Module):
        def setup(self) -> None:
            self.dense = nn.Dense(4)

        def __call__(self, x: Any) -> Any:
            return jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, jax.nn.gelu(self.dense(x)))

    runner = JaxRunner(Direct(), "linen", "model.py:Direct")
    made = dump(runner, given(tmp_path / "inputs", 1, x=(2, 4)), tmp_path / "dump")
    assert [call.layer for call in made.calls] == ["dense", ""]


def test_the_lstm_of_converters(tmp_path: Path) -> None:
    made = dump(
        JaxRunner(LSTM(3), "linen", "model.py:LSTM"),
        given(tmp_path / "inputs", 1, inputs=(2, 2, 4)),
        tmp_path / "dump",
    )
    (call,) = made.of("")
    assert [ref.path for ref in call.outputs] == ["0", "1.0", "1.1"]
