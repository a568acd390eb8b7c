"""A Flax model's arrays are found without making one."""

import json

import jax
import numpy as np
import pytest
from flax import linen, nnx

from converters.checkpoint import flatten
from converters.errors import CheckpointDamagedError, ModelLoadError, TargetError
from converters.target.shapes import target_shapes

FILE = """
import jax, jax.numpy as jnp
from flax import linen, nnx

class Ids(linen.Module):
    @linen.compact
    def __call__(self, ids):
        return linen.Dense(3)(linen.Embed(7, 4)(ids))

class Two(linen.Module):
    width: int = 5
    @linen.compact
    def __call__(self, x, y):
        return linen.Dense(self.width, kernel_init=linen.with_partitioning(
            linen.initializers.ones, ("a", "b")))(x + y)

class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)])
        self.norm = nnx.BatchNorm(3, rngs=rngs)

inputs = (jax.ShapeDtypeStruct((1, 2), "float32"),) * 2
by_name = lambda: {"x": inputs[0], "y": inputs[1]}
two = Two
pair = lambda: (Two(), inputs)
huge = lambda rngs: nnx.Linear(2**20, 2**20, rngs=rngs)
def broken():
    raise RuntimeError("no weights here")
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shapes_of(*arguments):
    return {path: info.shape for path, info in target_shapes(*arguments).items()}


def test_linen(folder):
    two = {"params/Dense_0/kernel": (2, 5), "params/Dense_0/bias": (5,)}
    assert shapes_of("net.py:two", "net.py:inputs") == two
    assert shapes_of("net.py:two", "net.py:by_name") == two
    assert shapes_of("net.py:pair") == two
    assert shapes_of("net.py:Ids") == {  # token ids were tried
        "params/Embed_0/embedding": (7, 4),
        "params/Dense_0/kernel": (4, 3),
        "params/Dense_0/bias": (3,),
    }


def test_nnx(folder):
    net = {
        "layers/0/kernel": (2, 3),
        "layers/0/bias": (3,),
        "norm/scale": (3,),
        "norm/bias": (3,),
        "norm/mean": (3,),
        "norm/var": (3,),
    }
    assert shapes_of("net.py:Net") == net
    assert shapes_of("net.py:huge")["kernel"] == (2**20, 2**20)  # 4 TiB if it were made


def test_trees_and_files(folder):
    tree = {"params": {"d": {"kernel": np.zeros((2, 3), np.float16)}}}
    info = target_shapes(tree)["params/d/kernel"]
    assert (info.shape, info.dtype) == ((2, 3), "float16")
    (folder / "x.json").write_text(json.dumps({"params/d/kernel": [[2, 3], "float32"]}))
    assert shapes_of(folder / "x.json") == {"params/d/kernel": (2, 3)}
    from flax import serialization

    (folder / "x.msgpack").write_bytes(serialization.to_bytes(tree))
    assert shapes_of(str(folder / "x.msgpack")) == {"params/d/kernel": (2, 3)}


class Dense(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(x)


def test_what_cannot_be_had_is_one_line(folder, refused):
    with refused(TargetError, "no weights here"):
        target_shapes("net.py:broken")
    with refused(TargetError, "is a int, not a Flax model"):
        target_shapes("net.py:number")
    with refused(ModelLoadError, "net.py has no Absent"):
        target_shapes("net.py:Absent")
    with refused(TargetError, "names no file"):
        target_shapes("nothing")
    with refused(TargetError, "cannot be initialized", "--target-inputs"):
        target_shapes("net.py:two")
    with refused(TargetError, "depend on its inputs"):
        target_shapes(Dense())
    with refused(ModelLoadError, "absent.py"):
        target_shapes("absent.py:Net")
    (folder / "x.json").write_text("[1]")
    with refused(CheckpointDamagedError, "is not a list of shapes"):
        target_shapes(folder / "x.json")


def test_an_initialized_model_of_nnx():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    assert shapes_of(model) == {"kernel": (2, 3), "bias": (3,)}
    variables = Dense().init(jax.random.key(0), np.zeros((1, 2), np.float32))
    assert shapes_of(variables) == {path: x.shape for path, x in flatten(variables).items()}
