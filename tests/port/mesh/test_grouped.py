"""Convolutions in groups on a mesh: XLA adds up the gradients of their kernels over too many devices."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import torch

from converters.graph import port
from converters.graph.writing.boundaries import convolve_in_groups
from migrate.port.mesh.source import sharding_text
from tests.waiting import LIMIT

SCRIPT = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import sharding

mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
draws = np.random.default_rng(0)
kernel = jnp.asarray(draws.standard_normal((3, 3, 1, 16)), jnp.float32)
for rows in (8, 4):
    x = jnp.asarray(draws.standard_normal((rows, 8, 8, 16)), jnp.float32)
    for convolution in (sharding.conv_in_groups, jax.lax.conv_general_dilated):

        def loss(kernel, x):
            numbers = "NHWC", "HWIO", "NHWC"
            options = {"dimension_numbers": numbers, "feature_group_count": 16}
            return jnp.sin(convolution(x, kernel, (1, 1), "SAME", **options)).sum()

        alone = jax.jit(jax.grad(loss))(kernel, x)
        whole = jax.device_put(kernel, NamedSharding(mesh, P()))
        divided = jax.device_put(x, NamedSharding(mesh, P(("data", "fsdp"))))
        with jax.set_mesh(mesh):
            shared = jax.jit(jax.grad(loss))(whole, divided)
        ratio = float(jnp.vdot(shared, alone) / jnp.vdot(alone, alone))
        print(rows, convolution.__name__, f"{ratio:.4f}")
"""


def test_the_gradient_of_a_kernel_is_not_multiplied(tmp_path: Path) -> None:
    rules = sharding_text("Net", (), ()).replace('used = {"data",', 'used = {*AXES, "data",')
    (tmp_path / "sharding.py").write_text(rules)
    script = tmp_path / "grouped.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "8 conv_in_groups 1.0000",
        # XLA's fault: where this becomes 1, `conv_in_groups` can go.
        "8 conv_general_dilated 2.0000",
        "4 conv_in_groups 1.0000",
        "4 conv_general_dilated 2.0000",
    ]


class Grouped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = torch.nn.Conv2d(4, 4, 3, groups=4)
        self.mixed = torch.nn.Conv2d(4, 6, 1)
        self.kernel = torch.nn.Parameter(torch.rand(6, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mixed(self.depthwise(x).relu())
        return torch.nn.functional.conv2d(x, self.kernel, groups=2)


def test_layers_and_calls_are_written_with_it() -> None:
    inputs = {"x": torch.rand(2, 4, 5, 5)}
    model = Grouped().eval()
    text = port(model, inputs, constrain=True).modeling
    assert "from .sharding import conv_in_groups" in text
    assert text.count("conv_general_dilated=conv_in_groups") == 1
    assert "= conv_in_groups(" in text or "return conv_in_groups(" in text
    assert "jax.lax.conv_general_dilated" not in text
    assert "conv_in_groups" not in port(model, inputs).modeling


def test_calls_that_are_written_with_parentheses_stay_valid() -> None:
    source = """import jax
import flax.linen as nn

a = (jax.lax.conv_general_dilated)(x, k, (1,), "SAME", feature_group_count=(4))
b = nn.Conv(8, (3,), feature_group_count=(n * 2),)
c = nn.Conv(8, (3,), feature_group_count=n, conv_general_dilated=other)
"""
    written = convolve_in_groups(source)
    lines = written.splitlines()
    assert lines[2] == "from .sharding import conv_in_groups"
    assert lines[4] == 'a = (conv_in_groups)(x, k, (1,), "SAME", feature_group_count=(4))'
    assert "conv_general_dilated=conv_in_groups, feature_group_count=(n * 2)" in lines[5]
    assert lines[6] == "c = nn.Conv(8, (3,), feature_group_count=n, conv_general_dilated=other)"
    ast.parse(written)
