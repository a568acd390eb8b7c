"""`migrate port --api nnx`: the folder works alone, as an nnx model, and is proven as linen's."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import torch
from click.testing import CliRunner, Result
from flax import nnx

from migrate.cli import commands
from migrate.parity.sides.jax.weights import numberless
from migrate.port.nnx_model import NnxPort

NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, rate):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)
        self.drop = nn.Dropout(rate)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + self.scale * self.drop(torch.relu(self.fc(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=12, depth=2, classes=5, rate=0.2):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList([Block(width, rate) for _ in range(depth)])
        self.register_buffer("shift", torch.arange(width).float())
        self.head = nn.Linear(width, classes)
        self.head.bias.requires_grad_(False)

    def encode(self, x):
        x = torch.relu(self.bn(self.stem(x))).mean((2, 3)) + self.shift
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x):
        return self.head(self.encode(x))
"""
# Runs without this project and without torch.
ALONE = """
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from net import FILE_CONFIG, build, load_params, require_params, trainable

model = build()
x = jnp.ones((4, 3, 8, 8))
first = nnx.jit(lambda model, x: model(x=x))(model, x)
assert first.shape == (4, 5)
np.testing.assert_array_equal(first, nnx.jit(lambda model, x: model(x=x))(model, x))
assert model.encode(x=x).shape == (4, 12)
graph, state = nnx.split(model)
np.testing.assert_allclose(nnx.merge(graph, state)(x=x), model(x=x))
again = type(model)(FILE_CONFIG(), rngs=nnx.Rngs(7))
again.eval()
assert np.abs(np.asarray(again(x=x) - model(x=x))).max() > 0
nnx.update(again, load_params())
np.testing.assert_array_equal(again(x=x), model(x=x))
narrow = build(param_dtype=jnp.bfloat16)
assert narrow.head.kernel.dtype == jnp.bfloat16
assert build(dtype=jnp.bfloat16)(x=x).dtype == jnp.bfloat16
model.train()
masks = [model(x=x) for _ in range(2)]
assert np.abs(np.asarray(masks[0] - masks[1])).max() > 0
still = {"/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))}
trained = {"/".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(model, trainable))}
assert still - trained == {"head/bias"}, still - trained
wider = FILE_CONFIG(classes=7)
try:
    load_params(config=wider)
except ValueError as error:
    assert "head/bias has the shape [5], Net's has [7]; give the config" in str(error), error
else:
    raise AssertionError
try:
    require_params(["head/kernel", "lost"], wider)
except ValueError as error:
    assert "has no place for lost" in str(error), error
    assert "lacks blocks/0/fc/bias" in str(error), error
else:
    raise AssertionError
assert not {"torch", "migrate", "converters"} & set(sys.modules)
""".replace("FILE_CONFIG", "NetConfig")

Port = Callable[..., Result]


@pytest.fixture
def ported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Port:
    """Run `migrate port --api nnx` in a folder with net.py."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        inputs = ("--inputs", "x=float32[4,3,8,8]")
        given = ("net.py:Net", *inputs, "--methods", "encode", "-o", "out", "--api", "nnx")
        return CliRunner().invoke(commands, ["port", *given, *words])

    return run


@pytest.mark.long
def test_the_folder_is_an_nnx_model_of_its_own(ported: Port, tmp_path: Path) -> None:
    done = ported("--no-proof")
    assert done.exit_code == 0, done.output
    folder = tmp_path / "out" / "net"
    page = (folder / "README.md").read_text()
    assert "model = build()" in page
    assert "model.train()" in page
    assert "model.encode(x=x)" in page
    assert "--api nnx" in page
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, 'out')\n{ALONE}"]
    alone = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr[-2000:]
    convert = [
        sys.executable,
        str(folder / "convert.py"),
        str(tmp_path / "run.pt"),
        "new.safetensors",
    ]
    original = runpy.run_path(str(tmp_path / "net.py"))["Net"]()
    torch.save(original.state_dict(), tmp_path / "run.pt")
    again = subprocess.run(convert, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    small = subprocess.run(
        [*convert, "--force", "--size", "depth=1"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert small.returncode == 2
    assert "Net has no place for blocks/1/" in small.stderr


# As long as the proof of a linen port: every comparison, in processes of their own.
@pytest.mark.long
def test_all_proofs_of_linen_are_made(ported: Port, tmp_path: Path) -> None:
    done = ported("--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    proof = {case["name"]: case["verdict"] for case in report["proof"]}
    assert {"float32", "gradients", "training mode", "encode: float32"} <= proof.keys()
    assert set(proof.values()) == {"match"}
    assert [one["verdict"] for one in report["bfloat16"]] == ["match", "match"]
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_parity.py"]
    folder = tmp_path / "out" / "net"
    tested = subprocess.run(test, capture_output=True, text=True, check=False, cwd=folder)
    assert tested.returncode == 0, tested.stdout


def test_numbers_of_layers_are_left_out_of_paths_of_both_apis() -> None:
    assert numberless("params/blocks_12/fc/kernel") == "params/blocks_#/fc/kernel"
    assert numberless("blocks/12/fc/kernel") == "blocks/#/fc/kernel"


def test_an_array_of_another_size_is_refused() -> None:
    class Model(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.head = nnx.Linear(3, width, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.head(x)

    port, wider = NnxPort(Model, 4), NnxPort(Model, 5)
    arrays = wider.drawn(0) | wider.rest()
    assert wider.apply(arrays, x=jnp.ones((2, 3))).shape == (2, 5)
    with pytest.raises(ValueError, match=r"head/bias has the shape \[5\], the model's has \[4\]"):
        port.apply(arrays, x=jnp.ones((2, 3)))
