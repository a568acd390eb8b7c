"""Attention of a port with `--mesh` and `--attention`: each device computes its own rows and heads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from converters.graph import port
from converters.graph.writing.repeated.repeats import Repeats
from migrate.port.mesh.source import sharding_text
from tests.waiting import LIMIT

SCRIPT = """
import jax
import jax.numpy as jnp
import numpy as np

import sharding
from converters.graph.ops.functions import kernels

mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
draws = np.random.default_rng(0)
whole = jnp.ones((4, 1, 6, 6), bool)
padding = (jnp.arange(6) >= jnp.arange(4)[:, None])[:, None, None]
bias = jnp.asarray(draws.standard_normal((1, 4, 6, 6)), jnp.float32)
called = []


def attention(query, key, value, **options):
    called.append((query.shape, kernels.kernel_of_device()))
    return kernels.dot_product_attention(query, key, value, implementation="xla", **options)


def as_it_is(function, *arrays, **options):
    return function(*arrays, **options)


def results(call, heads, few, rows, options):
    shapes = [(rows, 6, heads, 8), *[(rows, 6, few, 8)] * 2]
    draws = np.random.default_rng(1)
    arrays = [jnp.asarray(draws.standard_normal(shape), jnp.float32) for shape in shapes]
    step = jax.value_and_grad(
        lambda arrays: jnp.sin(call(attention, *arrays, **options)).sum(), has_aux=False
    )
    return jax.jit(step)(arrays)


for heads, few, rows, options in (
    (4, 2, 4, {"mask": padding, "is_causal": True}),
    (4, 1, 4, {"mask": whole, "bias": bias}),
    (4, 2, 4, {"bias": bias[0]}),
    (3, 3, 4, {}),
    (4, 2, 3, {}),
):
    alone = results(as_it_is, heads, few, rows, options)
    called.clear()
    backend, jax.default_backend = jax.default_backend, lambda: "tpu"
    with jax.set_mesh(mesh):
        shared = results(sharding.attend_on_mesh, heads, few, rows, options)
    jax.default_backend = backend
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    print(*called[0])
"""


def test_devices_of_a_mesh_attend_to_their_rows_and_heads(tmp_path: Path) -> None:
    rules = sharding_text("Net", (), (), attends=True).replace(
        'used = {"data",', 'used = {*AXES, "data",'
    )
    (tmp_path / "sharding.py").write_text(rules)
    script = tmp_path / "attends.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        *["(1, 6, 2, 8) splash"] * 3,
        "(4, 6, 3, 8) xla",  # tensor=2 does not divide 3 heads
        "(3, 6, 4, 8) xla",  # nor data * fsdp a batch of 3
    ]


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_port_calls_its_attention_so() -> None:
    inputs = {name: torch.randn(2, 4, 6, 8) for name in "qkv"}
    written = port(Attention(), inputs, repeats=Repeats(attention="auto"), constrain=True).modeling
    assert "from .sharding import attend_on_mesh\n" in written
    assert "attend_on_mesh(dot_product_attention, q" in written.replace("\n", "")
    assert "attend_on_mesh" not in sharding_text("Net", (), ())
