"""What a user names as a side, and is no model."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from migrate.parity.ground.errors import ParityError, TargetError
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.target import Target
from shims import simulate_tpu


def test_a_file_without_a_name_in_it(tmp_path: Path) -> None:
    for name, part in (
        ("net.safetensors", "is a file, and no model"),
        ("net.py", "net.py:factory"),
    ):
        (tmp_path / name).write_bytes(b"x")
        spec = str(tmp_path / name)
        with pytest.raises(TargetError, match=part):
            load_runner(Target("", spec, spec))


_PORT = """
import flax.linen as nn

UNUSED = frozenset(["params/layers_#/spare/kernel"])


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(x)


def build():
    return Net()
"""


def test_a_port_leaves_out_the_weights_that_its_original_does_not_read(tmp_path: Path) -> None:
    """Its file has them, so that a checkpoint keeps them; other weights without a place are refused."""
    (tmp_path / "__init__.py").write_text(_PORT)
    (tmp_path / "modeling.py").write_text("")
    arrays = {
        "params/head/kernel": np.ones((4, 3), np.float32),
        "params/head/bias": np.ones(3, np.float32),
        "params/layers_11/spare/kernel": np.ones((2, 2), np.float32),
    }
    inputs = write_inputs(tmp_path / "inputs", [{"x": np.ones((2, 4), np.float32)}])
    for extra, fits in ({}, True), ({"params/layers_11/other": np.ones(2, np.float32)}, False):
        save_file(arrays | extra, tmp_path / "params.safetensors")
        runner, weights = load_runner(Target("port", str(tmp_path), "port"))
        assert weights is not None
        runner.load_weights(weights)
        told = pytest.raises(ParityError, match=r"1 surplus \(params/layers_11/other\)")
        with nullcontext() if fits else told:
            runner.prepare(SideSettings(), inputs)


def test_a_side_on_torch_tpu_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(
        TargetError, match=r"^tpu:net\.py:Net: torch_tpu is not installed; .*--python-b"
    ):
        load_runner(Target("tpu", "net.py:Net", "tpu:net.py:Net"))


def test_a_side_on_torch_tpu_on_a_machine_with_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_tpu, "chips", lambda: 4)
    with pytest.raises(TargetError, match=r"on simulated TPUs only.*; PJRT_DEVICE=CPU"):
        load_runner(Target("tpu", "net.py:Net", "tpu:net.py:Net"))
