"""The way back for pytrees that did not come from here: the torch module says the keys."""

import jax
import numpy as np
import pytest
import torch
from flax import linen, nnx, serialization
from torch import nn

from converters.errors import MisfitError
from converters.reverse import to_state_dict, to_torch


class TorchNet(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv2d(3, width, (2, 3))
        self.norm = nn.BatchNorm2d(width)
        self.dense = nn.Linear(width, 5)

    def forward(self, x):
        return self.dense(self.norm(self.conv(x)).mean((2, 3)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Conv(4, (2, 3), padding="VALID", name="conv")(x)
        x = linen.BatchNorm(use_running_average=True, epsilon=1e-5, name="norm")(x)
        return linen.Dense(5, name="dense")(x.mean((1, 2)))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (2, 3), padding="VALID", rngs=rngs)
        self.norm = nnx.BatchNorm(4, use_running_average=True, epsilon=1e-5, rngs=rngs)
        self.dense = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.norm(self.conv(x)).mean((1, 2)))


INPUTS = np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype(np.float32)


def randomized(tree):
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.uniform(0.5, 1.5, x.shape).astype(np.float32), tree)


def torch_output(state):
    model = TorchNet().eval()
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.from_numpy(INPUTS)).numpy()


def test_linen_variables_in_memory_and_as_msgpack(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = INPUTS.transpose(0, 2, 3, 1)
    variables = randomized(jax.eval_shape(LinenNet().init, jax.random.key(0), images))
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(LinenNet().apply(variables, images))
    state = to_state_dict(variables, model=TorchNet())
    np.testing.assert_allclose(torch_output(state), expected, rtol=1e-5, atol=1e-5)
    (tmp_path / "trained.msgpack").write_bytes(serialization.to_bytes(variables))
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv, self.norm = nn.Conv2d(3, 4, (2, 3)), nn.BatchNorm2d(4)\n"
        "        self.dense = nn.Linear(4, 5)\n"
    )
    done = to_torch("trained.msgpack", model="net.py:Net", output="net.pt")
    (counter,) = [row for row in done.rows if row.origin == "kept"]
    assert counter.key == "norm.num_batches_tracked"
    assert "torch's initial value" in counter.note
    np.testing.assert_array_equal(
        torch_output(torch.load("net.pt", weights_only=True)), torch_output(state)
    )


def test_nnx_pure_dict_and_orbax(tmp_path):
    model = NnxNet(nnx.Rngs(0))
    state = nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat))
    tree = randomized(nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, tree)
    nnx.update(model, state)
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(model(INPUTS.transpose(0, 2, 3, 1)))
    found = to_state_dict(tree, model=TorchNet())
    np.testing.assert_allclose(torch_output(found), expected, rtol=1e-5, atol=1e-5)
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", tree)
    from_orbax = to_state_dict(tmp_path / "step", model=TorchNet())
    assert all(torch.equal(found[key], from_orbax[key]) for key in found)


def test_bare_params_of_linen():
    """What many save: `variables["params"]` alone."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    tree = {f"layers_{i}": {"kernel": np.ones((i + 2, i + 3), np.float32),
                            "bias": np.zeros(i + 3, np.float32)} for i in range(2)}  # fmt: skip
    state = to_state_dict(tree, model=model)
    model.load_state_dict(state)


class OtherNames(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Conv(4, (2, 3), padding="VALID")(x)
        x = linen.BatchNorm(use_running_average=True, epsilon=1e-5)(x)
        return linen.Dense(5)(x.mean((1, 2)))


def test_a_flax_model_with_other_names():
    images = INPUTS.transpose(0, 2, 3, 1)
    variables = randomized(jax.eval_shape(OtherNames().init, jax.random.key(0), images))
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(OtherNames().apply(variables, images))
    state = to_state_dict(variables, model=TorchNet())
    np.testing.assert_allclose(torch_output(state), expected, rtol=1e-5, atol=1e-5)


def test_everything_that_does_not_fit_is_named_at_once():
    variables = LinenNet().init(jax.random.key(0), INPUTS.transpose(0, 2, 3, 1))
    variables["params"]["dense"].pop("bias")
    variables["params"]["dense"]["scale"] = np.ones(3)
    with pytest.raises(MisfitError) as caught:
        to_state_dict(variables, model=TorchNet(6))
    assert set(caught.value.misfits) >= {
        "params/dense/bias is missing",
        "params/dense/scale is not wanted",
        "params/conv/kernel is (2, 3, 3, 4), not (2, 3, 3, 6)",
        "batch_stats/norm/var is (4,), not (6,)",
    }
