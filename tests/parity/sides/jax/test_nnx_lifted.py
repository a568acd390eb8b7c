"""Layers inside nnx's transforms: modules that they make anew are known by their arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flax import nnx

from migrate.parity.dump.dump import Dump
from migrate.parity.sides.jax.runner import JaxRunner
from tests.parity.sides.jax.jax_sides import dump, errors, given, truth_and_local


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(4, 4, rngs=rngs)
        self.dense = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + nnx.tanh(self.dense(self.inner(x)))


class Decorated(Layer):
    @nnx.remat
    def __call__(self, x: Any) -> Any:
        return self.dense(x)


@nnx.split_rngs(splits=3)
@nnx.vmap(in_axes=(0,), out_axes=0)
def stacked(rngs: nnx.Rngs) -> Layer:
    return Layer(rngs)


class Lifted(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.stacks = nnx.List([stacked(rngs), stacked(rngs)])
        self.first, self.second = Layer(rngs), Layer(rngs)
        self.decorated = Decorated(rngs)
        self.loop = nnx.RNN(nnx.SimpleCell(4, 4, rngs=rngs))

    def __call__(self, x: Any) -> tuple[Any, Any]:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def scan(x: Any, layer: Layer) -> Any:
            return layer(x)

        for stack in self.stacks:
            x = scan(x, stack)
        x = nnx.jit(lambda layer, x: layer(x))(self.second, x)
        x = nnx.remat(lambda layer, x: layer(x))(self.first, x)
        x = self.decorated(x)
        mapped = nnx.vmap(lambda layer, x: layer(x), in_axes=(None, 0))(self.first, x)
        return mapped, self.loop(x)


@pytest.fixture(scope="module")
def lifted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dump, Dump]:
    folder = tmp_path_factory.mktemp("lifted")
    sides = [JaxRunner(Lifted(nnx.Rngs(seed)), "nnx", "model.py:Lifted") for seed in (0, 1)]
    return truth_and_local(sides[0], sides[1], given(folder / "inputs", 2, x=(2, 3, 4)), folder)


@pytest.mark.long
def test_a_scanned_layer_is_called_once_for_each_step(lifted: tuple[Dump, Dump]) -> None:
    for made in lifted:
        for name in ("stacks.0", "stacks.1", "stacks.1.dense", "loop.cell"):
            calls = [call for call in made.of(name) if call.input == 1]
            assert [call.number for call in calls] == [0, 1, 2]
    assert lifted[0].layers["stacks.1.dense"].weights == (
        "stacks/1/dense/bias",
        "stacks/1/dense/kernel",
    )


def test_layers_in_jit_and_remat_are_seen_under_their_own_names(
    lifted: tuple[Dump, Dump],
) -> None:
    for made in lifted:
        for name in ("first", "second.inner", "decorated", "decorated.dense"):
            assert [call.number for call in made.of(name)] == [0, 0]
        order = [call.layer for call in made.calls if call.input == 0 and "." not in call.layer]
        assert order == ["second", "first", "decorated", "loop", ""]


def test_each_is_fed_for_itself(lifted: tuple[Dump, Dump]) -> None:
    assert max(errors(*lifted).values()) < 3e-7


def test_what_vmap_hides_is_told(lifted: tuple[Dump, Dump]) -> None:
    for made in lifted:
        (note,) = [note for note in made.facts.notes if "vmap" in note]
        assert note.startswith("first, first.inner, first.dense: ")


def test_equal_modules_are_told_apart(tmp_path: Path) -> None:
    class Norms(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.second = (nnx.LayerNorm(4, rngs=rngs) for _ in range(2))

        def __call__(self, x: Any) -> Any:
            return nnx.jit(lambda norm, x: norm(x))(self.second, x)

    runner = JaxRunner(Norms(nnx.Rngs(0)), "nnx", "model.py:Norms")
    made = dump(runner, given(tmp_path / "inputs", 1, x=(2, 4)), tmp_path / "dump")
    assert [call.layer for call in made.calls] == ["second", ""]


def test_nothing_stays_replaced(lifted: tuple[Dump, Dump]) -> None:
    import jax

    del lifted
    assert jax.checkpoint.__module__.startswith("jax")
    assert nnx.Linear.__call__.__qualname__ == "Linear.__call__"
    assert not hasattr(nnx.Linear.__call__, "__wrapped__")
    assert not jax.config.jax_disable_jit
    assert not jax.config.jax_enable_x64

    @jax.checkpoint
    def double(x: Any) -> Any:
        return 2 * x

    assert float(jax.grad(double)(1.0)) == 2.0
