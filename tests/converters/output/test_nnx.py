"""A pytree with the names of nnx is the pure dict of a real nnx model, positions of lists as numbers."""

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.torch import save_file
from torch import nn

from converters import convert, load_pytree
from converters.checkpoint import PytreeLeaf, TensorInfo
from converters.output import write_pytree

SOURCE = """
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
    def forward(self, x):
        return self.norm(self.dense(x).relu())
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.BatchNorm1d(6))
        self.blocks = nn.ModuleList(Block() for _ in range(12))
        self.head = nn.Linear(6, 3)
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""


class Block(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(6, 6, rngs=rngs)
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, rngs=rngs)

    def __call__(self, x):
        return self.norm(jax.nn.relu(self.dense(x)))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Sequential(
            nnx.Linear(5, 6, rngs=rngs),
            jax.nn.relu,
            nnx.BatchNorm(6, use_running_average=True, rngs=rngs),
        )
        self.blocks = nnx.List([Block(rngs) for _ in range(12)])
        self.head = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("name", ["x.safetensors", "x.msgpack"])
def test_a_real_model_takes_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(SOURCE)
    names: dict = {}
    exec(SOURCE, names)
    torch.manual_seed(0)
    reference = names["Net"]().eval()
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    save_file(reference.state_dict(), "net.safetensors")
    convert("net.safetensors", model="net.py:Net", to="nnx", output=name)

    tree = load_pytree(name)
    assert set(tree["blocks"]) == set(range(12))
    model = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    graph, state = nnx.split(model)
    nnx.replace_by_pure_dict(state, tree)
    inputs = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    with jax.default_matmul_precision("highest"):
        found = nnx.merge(graph, state)(inputs)
    with torch.no_grad():
        wanted = reference(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(np.asarray(found), wanted, atol=2e-6)


@pytest.mark.parametrize(
    ("form", "options"),
    [("safetensors", {}), ("msgpack", {}), ("safetensors", {"shard_bytes": 8})],
)
def test_only_nnx_has_positions(tmp_path, form, options):
    leaves = [
        PytreeLeaf(f"layers/{n}/kernel", TensorInfo((), "int32"), lambda n=n: np.array(n, np.int32))
        for n in (0, 2, 10, 1)
    ]
    write_pytree(tmp_path / "nnx", leaves, form, metadata={"api": "nnx"}, **options)
    write_pytree(tmp_path / "linen", leaves, form, metadata={"api": "linen"}, **options)
    assert {
        key: int(v["kernel"]) for key, v in load_pytree(tmp_path / "nnx")["layers"].items()
    } == {
        0: 0,
        1: 1,
        2: 2,
        10: 10,
    }
    assert set(load_pytree(tmp_path / "linen")["layers"]) == {"0", "1", "2", "10"}
