"""Repeated blocks stacked, as `nn.scan` wants them: the same outputs, and the way back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen
from torch import nn

from converters import plan
from converters.checkpoint import StateDict, nest
from converters.errors import MisfitError
from converters.kept import writing_kept
from converters.mapping.scan import scan_plan
from converters.reverse import to_state_dict


class Block(nn.Module):
    def __init__(self, hidden=7):
        super().__init__()
        self.up = nn.Linear(4, hidden)
        self.down = nn.Linear(hidden, 4)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self, hidden=(7, 7, 7)):
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.layer = nn.ModuleList([Block(side) for side in hidden])

    def forward(self, x):
        x = self.embed(x)
        for block in self.layer:
            x = block(x)
        return x


class LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x, _):
        return x + linen.Dense(4, name="down")(jnp.tanh(linen.Dense(7, name="up")(x))), None


class LinenNet(linen.Module):
    axis: int

    @linen.compact
    def __call__(self, x):
        x = linen.Dense(4, name="embed")(x)
        blocks = linen.scan(
            LinenBlock, variable_axes={"params": self.axis}, split_rngs={"params": True}, length=3
        )
        return blocks(name="layer")(x, None)[0]


@pytest.mark.parametrize("axis", [0, 1])
def test_nn_scan_gives_torchs_output(tmp_path, axis):
    torch.manual_seed(0)
    model = Net()
    made = scan_plan(plan(model.state_dict(), model=model), axis)
    assert [str(family) for family in made.families] == ["params/layer_{0..2}"]
    checkpoint = StateDict("net", model.state_dict())
    arrays = {leaf.path: leaf.read(checkpoint.read) for leaf in made.plan.leaves}
    for leaf in made.plan.leaves:
        assert arrays[leaf.path].shape == leaf.info.shape
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    tree = nest(arrays.items())
    wanted = jax.eval_shape(LinenNet(axis).init, jax.random.key(0), x)
    assert jax.tree.map(jnp.shape, tree) == jax.tree.map(jnp.shape, wanted)
    with jax.default_matmul_precision("highest"):
        found = LinenNet(axis).apply(tree, x)
    expected = model(torch.from_numpy(x)).detach()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    row = next(row for row in made.plan.rows if row.key == "layer.2.up.weight")
    assert (row.path, row.targets[0].index) == ("params/layer/up/kernel", 2)

    with writing_kept(tmp_path / "net.flax.safetensors", made.plan, checkpoint):
        pass
    for back in (
        to_state_dict(tree, kept=tmp_path / "net.flax.torch.safetensors"),
        to_state_dict(tree, model=model),
    ):
        assert list(back) == list(model.state_dict())
        assert all(torch.equal(back[key], tensor) for key, tensor in model.state_dict().items())


def test_nnx_numbers_are_levels():
    model = Net()
    made = scan_plan(plan(model.state_dict(), model=model, to="nnx"))
    assert {leaf.path: leaf.info.shape for leaf in made.plan.leaves} == {
        "embed/kernel": (3, 4),
        "embed/bias": (4,),
        "layer/up/kernel": (3, 4, 7),
        "layer/up/bias": (3, 7),
        "layer/down/kernel": (3, 7, 4),
        "layer/down/bias": (3, 4),
    }


def test_blocks_that_differ_are_refused():
    model = Net((7, 7, 8))
    with pytest.raises(MisfitError) as caught:
        scan_plan(plan(model.state_dict(), model=model))
    assert caught.value.misfits == (
        "params/layer_{0..2}: params/layer/up/kernel is float32 (4, 7) in 0, float32 (4, 8) in 2",
    )
    with pytest.raises(MisfitError, match="params/blocks is no repeated block"):
        scan_plan(plan(model.state_dict(), model=model), blocks=["params/blocks"])
    one = Net((7,))
    with pytest.raises(MisfitError, match="no blocks are repeated"):
        scan_plan(plan(one.state_dict(), model=one))


def test_only_the_alike_are_stacked_and_the_others_named():
    model = nn.ModuleDict({"a": Net(), "b": Net((7, 8))})
    made = scan_plan(plan(model.state_dict(), model=model))
    assert [family.path for family in made.families] == ["params/a/layer"]
    assert len(made.left) == 1
    assert "params/b/layer_{0..1}" in made.left[0]


def test_the_outermost_blocks_are_stacked():
    model = nn.Module()
    model.stages = nn.ModuleList([Net() for _ in range(2)])
    made = scan_plan(plan(model.state_dict(), model=model))
    shapes = {leaf.path: leaf.info.shape for leaf in made.plan.leaves}
    assert shapes["params/stages/layer_1/up/kernel"] == (2, 4, 7)
