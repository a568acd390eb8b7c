"""Models that choose a kernel by the device on which JAX runs."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from migrate.fit.lowered.child import lower
from migrate.fit.lowered.step import Wanted

ATTENTION = """
from flax import linen as nn

from converters.graph.ops.functions.kernels import dot_product_attention


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        q, k, v = (nn.DenseGeneral((1, 8))(x) for _ in range(3))
        return dot_product_attention(q, k, v, is_causal=True, implementation="auto")
"""


@pytest.mark.parametrize(("devices", "kernels"), [(1, 3), (2, 0)])
def test_the_kernel_of_a_single_tpu_is_in_its_training_step(
    devices: int, kernels: int, tmp_path: Path
) -> None:
    # XLA cannot divide the kernel over devices.
    (tmp_path / "net.py").write_text(ATTENTION)
    wanted = Wanted(f"{tmp_path}/net.py:Net", ("x=float32[2,16,8]",), "adamw", devices=devices)
    text = lower(wanted).parts[0].program.data.decode()
    assert text.count("custom_call @tpu_custom_call") == kernels
    assert jax.default_backend() == "cpu"
