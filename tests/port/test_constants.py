"""Arrays that torch does not save: `migrate weights` adds them, and a port says so where they are missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import save_file

from converters.mapping.file import save_mapping
from converters.planning import planned
from converters.request import PlanOptions
from migrate.cli import commands
from migrate.port.texts import package_text

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def forward(self, x):
        return self.fc(x) + self.table
"""
MODELING = """
import jax.numpy as jnp
from flax import linen as nn

from .config import NetConfig


class Net(nn.Module):
    config: NetConfig

    @nn.compact
    def __call__(self, x):
        table = self.variable("buffers", "table", jnp.zeros, (self.config.width,)).value
        return nn.Dense(self.config.width, name="fc")(x) + table
"""
CONFIG = """
from dataclasses import dataclass


@dataclass(frozen=True)
class NetConfig:
    width: int = 3
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A torch model, its checkpoint, and a folder as `migrate port` writes it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    weights = {"fc.weight": torch.randn(3, 4), "fc.bias": torch.randn(3)}
    torch.save(weights, "net.pt")
    folder = tmp_path / "ported" / "flax_net"
    folder.mkdir(parents=True)
    inputs = {"x": ((2, 4), "float32")}
    text = package_text("Net", "NetConfig", "Net in Flax", inputs, constants=True)
    (folder / "__init__.py").write_text(text)
    (folder / "modeling.py").write_text(MODELING)
    (folder / "config.py").write_text(CONFIG)
    plan = planned(Path("net.pt"), PlanOptions(model="net.py:Net")).plan
    save_mapping(plan, folder / "mapping.yaml", "linen")
    save_file({"buffers/table": np.arange(3, dtype="f4")}, folder / "constants.safetensors")
    monkeypatch.syspath_prepend(str(tmp_path / "ported"))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "flax_net"]:
        del sys.modules[name]


def weights(*words: str) -> Any:
    return CliRunner().invoke(commands, ["weights", "net.pt", *words])


@pytest.mark.parametrize("target", ["port:ported/flax_net", "ported/flax_net"])
def test_a_port_as_the_target_gets_its_constants(place: Path, target: str) -> None:
    done = weights("--target", target, "-o", "whole.safetensors")
    assert done.exit_code == 0, done.output
    port: Any = importlib.import_module("flax_net")
    variables = port.load_params(place / "whole.safetensors")
    assert variables["buffers"]["table"].tolist() == [0, 1, 2]
    assert variables["params"]["fc"]["kernel"].shape == (4, 3)


def test_a_file_without_them_is_refused_with_what_adds_them(place: Path) -> None:
    done = weights("--model", "torch:net.py:Net", "-o", "bare.safetensors")
    assert (
        "not in the output: 1 buffer of the model that torch does not save (table)" in done.output
    )
    port: Any = importlib.import_module("flax_net")
    with pytest.raises(
        ValueError, match=r"lacks buffers/table; torch does not save them: .*convert\.py"
    ):
        port.load_params(place / "bare.safetensors")
    with pytest.raises(ValueError, match="lacks params/fc/bias; give the config of its size"):
        port.require_params(["params/fc/kernel", "buffers/table"])


def test_other_weights_than_the_ports_are_refused(place: Path) -> None:
    torch.save({"fc.weight": torch.randn(3, 4)}, "net.pt")
    done = weights("--target", "port:ported/flax_net", "-o", "other.safetensors")
    assert done.exit_code == 2
    assert "ported/flax_net: Net lacks params/fc/bias" in done.output
    assert not (place / "other.safetensors").exists()


def test_a_package_of_nnx_has_the_same_advice() -> None:
    text = package_text("Net", "NetConfig", "Net in Flax", {}, api="nnx", constants=True)
    compile(text, "__init__.py", "exec")
    assert "{_advice(expected - present)}" in text
    assert "ADVICE" not in package_text("Net", "NetConfig", "Net in Flax", {}, api="nnx")
