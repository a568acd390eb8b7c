"""A port with partition rules: what is written, and that a training step on a mesh is that of one device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.cli import commands
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.target import parse_target
from migrate.port.errors import PortError
from migrate.port.pipeline import PortOptions, port_model
from tests.port import standin

TRAIN = """
import sys
from functools import partial
import jax, jax.numpy as jnp, optax
sys.path.insert(0, sys.argv[1])
import net

optimizer, model = optax.adamw(1e-2), net.build()
x = jax.random.normal(jax.random.key(0), (8, 12))

@partial(jax.jit, donate_argnums=(0, 1))
def step(params, state, x):
    loss, gradients = jax.value_and_grad(
        lambda params: jnp.square(model.apply({"params": params}, x=x)).mean()
    )(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss

def losses(params, state, x):
    found = []
    for _ in range(3):
        params, state, loss = step(params, state, x)
        found.append(float(loss))
    return found, params, state

params = net.load_params()["params"]
alone, _, _ = losses(params, optimizer.init(params), x)
mesh = net.make_mesh(data=2, fsdp=2, tensor=2)
params = net.shard_params(net.load_params(), mesh)["params"]
abstract = jax.eval_shape(optimizer.init, params)
state = jax.jit(optimizer.init, out_shardings=net.shardings(abstract, mesh))(params)
with jax.set_mesh(mesh):
    both, params, state = losses(params, state, net.shard_batch({"x": x}, mesh)["x"])
assert all(abs(a - b) < 1e-5 for a, b in zip(alone, both)), (alone, both)
kernel = params["blocks_0"]["up"]["kernel"]
assert kernel.addressable_shards[0].data.size * 4 == kernel.size
moment = state[0].mu["blocks_0"]["up"]["kernel"]
assert moment.addressable_shards[0].data.size * 4 == moment.size
"""

WIDE = """
import sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from migrate.port.mesh import child
from migrate.port.package import package_of

place, work = Path(sys.argv[1]), Path(sys.argv[2])
child.FACTOR = 1e-5  # so that float64 has to decide
child.FLOOR = 1e-12
save_file({"x": np.random.default_rng(0).standard_normal((8, 12)).astype("float32")}, work / "x")
values = {"inputs": work / "x", "streams": [], "params": str(place / "params.safetensors")}
with package_of(place) as package:
    for fault in (0.0, 1e-6):
        shard, values["meshes"] = package.shard_batch, [{"tensor": 8}]
        package.shard_batch = lambda inputs, mesh: shard({"x": inputs["x"] * (1 + fault)}, mesh)
        (run,) = child._runs(package, values)
        package.shard_batch = shard
        assert run["output"] > 1, run
        assert run["wide"] > 1 if fault else run["wide"] < 2**-10, run
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("mesh")
    standin.written(place)
    options = PortOptions(
        output=place / "ported",
        inputs=("x=float32[2,12]",),
        count=2,
        mesh=True,
        comparisons=frozenset({"mesh"}),
    )
    done = port_model(f"{place / 'net.py'}:Net", options, "migrate port", lambda said: None)
    assert [run.mesh for run in done.meshes] == [
        "data=8",
        "fsdp=8",
        "tensor=8",
        "data=2 fsdp=2 tensor=2",
    ]
    assert done.matches
    assert all(run.verdict == "match" for run in done.meshes)
    tensor = done.meshes[2]
    assert tensor.collectives["all-reduce"]
    assert tensor.bytes < 0.6
    return done.folder


def test_the_rules_and_the_source(folder: Path) -> None:
    rules = (folder / "sharding.py").read_text()
    assert '(r"up/kernel", P("fsdp", "tensor")),' in rules
    assert '(r"down/kernel", P("tensor", "fsdp")),' in rules
    source = (folder / "modeling.py").read_text()
    assert "from .sharding import constrain_batch" in source
    assert source.count("return constrain_batch(") == 1
    page = (folder / "README.md").read_text()
    assert "| data=2 fsdp=2 tensor=2 | match |" in page


@pytest.mark.long
def test_a_training_step_with_a_donated_state(folder: Path) -> None:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    command = [sys.executable, "-c", TRAIN, str(folder.parent)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_float64_decides_what_rounding_may_explain(folder: Path, tmp_path: Path) -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", WIDE, str(folder), str(tmp_path)]
    done = subprocess.run(
        command, env=os.environ | flags, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_fit_takes_the_rules_of_a_port(folder: Path) -> None:
    words = ["fit", f"port:{folder}", "--inputs", "x=float32[2,12]", "--tpu", "v5e-8", "--json"]
    done = CliRunner().invoke(commands, [*words, "--mesh", "tensor=8"])
    assert done.exit_code == 0, done.output[-2000:]
    assert "all-reduce" in done.output


@pytest.mark.parametrize("axis", ["model", "dp"])
def test_fit_refuses_axes_that_the_port_does_not_have(folder: Path, axis: str) -> None:
    runner, _ = load_runner(parse_target(f"port:{folder}"))
    assert runner.model.batch_axes == ("data", "fsdp")
    words = ["fit", f"port:{folder}", "--inputs", "x=float32[2,12]", "--tpu", "v5e-8"]
    done = CliRunner().invoke(commands, [*words, "--mesh", f"{axis}=8"])
    assert done.exit_code == 2
    assert f"--mesh {axis}=8: no rule of" in done.output


def test_fit_refuses_a_mesh_that_does_not_divide(folder: Path) -> None:
    words = ["fit", f"port:{folder}", "--inputs", "x=float32[2,12]", "--tpu", "v5e-256"]
    done = CliRunner().invoke(commands, [*words, "--mesh", "tensor=256"])
    assert done.exit_code == 2
    assert "is not divisible by tensor=256" in done.output


def test_rules_need_the_whole_model(tmp_path: Path) -> None:
    options = PortOptions(output=tmp_path / "ported", mesh=True, allow_stubs=True)
    with pytest.raises(PortError, match="--mesh with --allow-stubs"):
        port_model("net.py:Net", options, "migrate port", lambda said: None)
    assert not (tmp_path / "ported").exists()
