"""Weights of JAX sides: names as `migrate weights` writes them, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen as nn
from flax import nnx
from safetensors.numpy import load_file, save_file

from converters import convert
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.sides.jax.runner import JaxRunner
from tests.parity.sides.jax.jax_sides import Net, NnxNet, Stack, dump, given, values


class Torch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.norm = torch.nn.BatchNorm1d(4)


class Nnx(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x: object) -> object:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def test_linen_names_begin_with_the_collection(tmp_path: Path) -> None:
    runner = JaxRunner(Net(), "linen", "model.py:Net")
    with pytest.raises(ParityError, match="has no weights yet"):
        runner.save_weights(tmp_path / "early.safetensors")
    runner.prepare(SideSettings(), given(tmp_path / "inputs", 1, image=(2, 6, 5, 3)))
    runner.save_weights(tmp_path / "weights.safetensors")
    names = set(load_file(tmp_path / "weights.safetensors"))
    assert {"params/Dense_0/kernel", "batch_stats/BatchNorm_0/mean"} <= names


def test_initial_weights_follow_the_seed(tmp_path: Path) -> None:
    inputs = given(tmp_path / "inputs", 1, x=(2, 3, 8))
    found = []
    for seed in (1, 1, 2):
        runner = JaxRunner(Stack((1e-6,)), "linen", "model.py:Stack")
        runner.prepare(SideSettings(seed=seed), inputs)
        runner.save_weights(tmp_path / "weights.safetensors")
        found.append(load_file(tmp_path / "weights.safetensors")["params/block_0/Dense_0/kernel"])
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_nnx_takes_what_was_converted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Torch().eval()
    module.norm.running_mean += 1
    source = tmp_path / "torch.safetensors"
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    save_file(state, source)
    output = tmp_path / "nnx.safetensors"
    convert(source, model=module, to="nnx", output=output)
    runner = JaxRunner(Nnx(nnx.Rngs(1)), "nnx", "model.py:Nnx")
    runner.load_weights(output)
    runner.save_weights(tmp_path / "again.safetensors")
    again, converted = load_file(tmp_path / "again.safetensors"), load_file(output)
    assert set(again) == set(converted)
    assert all(np.array_equal(array, converted[name]) for name, array in again.items())
    inputs = given(tmp_path / "inputs", 1, x=(3, 4))
    made = values(dump(runner, inputs, tmp_path / "dump", TRUTH))[""]
    x = torch.from_numpy(inputs[0]["x"]).double()
    module.double()
    right = module.norm(module.layers[1](module.layers[0](x)))
    assert np.allclose(made, right.detach().numpy(), rtol=1e-12)


def test_weights_that_do_not_fit_are_told_all_at_once(tmp_path: Path) -> None:
    runner = JaxRunner(NnxNet(nnx.Rngs(0)), "nnx", "model.py:NnxNet")
    runner.save_weights(tmp_path / "weights.safetensors")
    arrays = load_file(tmp_path / "weights.safetensors")
    arrays["extra"] = arrays.pop("norm/mean")
    arrays["norm/scale"] = np.ones(3, np.float32)
    save_file(arrays, tmp_path / "other.safetensors")
    with pytest.raises(ParityError) as caught:
        runner.load_weights(tmp_path / "other.safetensors")
    assert str(caught.value).startswith(
        "model.py:NnxNet: the pytree does not fit: 1 missing (norm/mean), 1 surplus (extra), "
        "1 misshapen (norm/scale [3] instead of [8])"
    )


def test_a_file_that_is_no_pytree(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"no")
    with pytest.raises(ParityError, match=r"weights\.safetensors"):
        JaxRunner(Net(), "linen", "model.py:Net").load_weights(tmp_path / "weights.safetensors")


class Odd(nnx.Module):
    """Arrays that are no variables, parameters in a list, a cache, a module under two names."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.frequencies = jnp.arange(4.0)
        self.shifts = nnx.data([jnp.ones(4)])
        self.scales = nnx.List([nnx.Param(jnp.ones(4))])
        self.cache = nnx.Cache(jnp.zeros(4))
        self.dense = nnx.Linear(4, 4, rngs=rngs)
        self.tied = self.dense

    def __call__(self, x: Any) -> Any:
        x = self.tied(self.dense(x))
        return x * self.frequencies * self.scales[0][...] + self.shifts[0]


def test_only_variables_that_last_are_weights(tmp_path: Path) -> None:
    runner = JaxRunner(Odd(nnx.Rngs(0)), "nnx", "model.py:Odd")
    runner.save_weights(tmp_path / "weights.safetensors")
    names = {"dense/bias", "dense/kernel", "scales/0"}
    assert set(load_file(tmp_path / "weights.safetensors")) == names
    made = dump(runner, given(tmp_path / "inputs", 1, x=(2, 4)), tmp_path / "dump")
    assert [call.layer for call in made.calls] == ["dense", "dense", ""]
    assert made.layers["dense"].weights == ("dense/bias", "dense/kernel")
    assert made.layers[""].weights == ("scales/0",)


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.WeightNorm(nn.Dense(4))(x)


def test_a_key_with_a_slash_in_it(tmp_path: Path) -> None:
    inputs = given(tmp_path / "inputs", 1, x=(2, 4))
    first = JaxRunner(Normed(), "linen", "model.py:Normed")
    first.prepare(SideSettings(), inputs)
    first.save_weights(tmp_path / "weights.safetensors")
    made = dump(first, inputs, tmp_path / "first")
    (name,) = made.layers["WeightNorm_0"].weights
    assert name == "params/WeightNorm_0/Dense_0/kernel/scale"
    other = JaxRunner(Normed(), "linen", "model.py:Normed")
    other.load_weights(tmp_path / "weights.safetensors")
    again = dump(other, inputs, tmp_path / "again")
    assert np.array_equal(values(again)[""], values(made)[""])


def test_loaded_weights_are_held_against_the_model(tmp_path: Path) -> None:
    save_file({"params/other": np.ones(4, np.float32)}, tmp_path / "weights.safetensors")
    runner = JaxRunner(nn.Dense(4), "linen", "model.py:Dense")
    runner.load_weights(tmp_path / "weights.safetensors")
    with pytest.raises(
        ParityError, match=r"2 missing \(params/bias, params/kernel\), 1 surplus \(params/other\)"
    ):
        dump(runner, given(tmp_path / "inputs", 1, inputs=(2, 4)), tmp_path / "dump")
