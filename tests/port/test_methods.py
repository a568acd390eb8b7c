"""`migrate port --methods`: where the inputs of a method come from, and what is written and proven."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file

from converters.graph.writing.model import Limits
from migrate.cli import commands
from migrate.port import pipeline
from migrate.port.compiler import compiled
from migrate.port.methods import specs_by_method

NET = """
import torch
from torch import nn


class Coder(nn.Module):
    def __init__(self, width=6, latent=4):
        super().__init__()
        self.inward, self.outward = nn.Linear(width, latent), nn.Linear(latent, width)
        self.scorer = nn.Linear(latent, 3)

    def encode(self, x):
        return torch.tanh(self.inward(x))

    def decode(self, z):
        return self.outward(z)

    def draw(self, count: int):
        return self.decode(torch.randn(count, 4))

    def score(self, x, weight=None):
        return self.scorer(self.encode(x))

    def forward(self, x):
        return self.decode(self.encode(x))
"""

Port = Callable[..., Result]


@pytest.fixture
def ported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Port:
    """Run `migrate port` in a folder with net.py."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        words = ("--inputs", "x=float32[5,6]", "-o", "out", *words)
        return CliRunner().invoke(commands, ["port", "net.py:Coder", *words])

    return run


def test_inputs_are_parted_by_method() -> None:
    specs = ("x=float32[2,3]", "decode:z=float32[2,4]", "decode:more.npz", "data.py:batches")
    own, others = specs_by_method(specs, ("encode", "decode"))
    assert own == ("x=float32[2,3]", "data.py:batches")
    assert others == {"encode": (), "decode": ("z=float32[2,4]", "more.npz")}


def test_what_a_method_is_given_must_be_known(ported: Port) -> None:
    done = ported("--methods", "encode,decode", "--no-proof")
    assert done.exit_code == 2
    assert "method decode: input shapes are unknown (z)" in done.output
    assert "--inputs 'decode:z=float32[2,16]'" in done.output
    assert not Path("out").exists()


def test_a_method_that_is_given_no_tensor_is_refused(ported: Port) -> None:
    done = ported("--methods", "draw", "--no-proof")
    assert done.exit_code == 2
    assert "method draw: takes no tensors" in done.output


def test_a_method_that_is_none_is_one_line(ported: Port) -> None:
    done = ported("--methods", "encode,invert", "--no-proof")
    assert done.exit_code == 2
    assert (
        "Coder has no method invert of its own; its methods: encode, decode, draw, score"
        in done.output
    )


def test_methods_that_are_left_out_are_told(ported: Port) -> None:
    done = ported("--no-proof")
    assert done.exit_code == 0, done.output
    said = "not in the port: Coder.encode, Coder.decode, Coder.draw, Coder.score"
    page = Path("out/coder/README.md").read_text()
    for text in (done.output, page):
        assert said in text
        assert "--methods encode,decode,draw,score" in text


def test_inputs_of_a_method_may_be_a_file(ported: Port, tmp_path: Path) -> None:
    """The README has the calls, the test of the port their inputs, and the command is repeated as it was."""
    save_file(
        {"z": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)},
        tmp_path / "codes.safetensors",
    )
    words = ("--methods", "decode, score", "--inputs", "decode:codes.safetensors", "--no-proof")
    done = ported(*words)
    assert done.exit_code == 0, done.output
    folder = Path("out/coder")
    page, source = (folder / "README.md").read_text(), (folder / "modeling.py").read_text()
    assert 'model.apply(variables, z=z, method="decode")' in page
    assert "--methods=decode,score" in page
    assert re.search(
        r"method score uses weights that the forward does not \(params/scorer/bias", page
    )
    assert "    def decode(self, z: Array) -> Array:" in source
    assert "    def score(self, x: Array) -> Array:" in source
    assert load_file(folder / "test_inputs_decode.safetensors")["z"].shape == (3, 4)
    assert '("decode", "test_inputs_decode.safetensors")' in (folder / "test_parity.py").read_text()
    assert "test_inputs_decode.safetensors" in page


@pytest.mark.long
def test_methods_are_proven(ported: Port) -> None:
    done = ported("--methods", "encode,decode", "--inputs", "decode:z=float32[5,4]")
    assert done.exit_code == 0, done.output
    for method in ("encode", "decode"):
        for what in ("float32", "gradients", "batch 1", "batch 6"):
            assert re.search(rf"{method}: {what} .* match", done.output), (method, what)
    assert "proven, all changed at once: width 6" in done.output


@pytest.mark.long
def test_a_method_that_differs_is_named(ported: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any, **how: Any) -> Any:
        made = compiled(*args, **how)

        def write(limits: Limits, exact: bool) -> tuple[str, str]:
            modeling, config = made.write(limits, exact)
            before, name, after = modeling.partition("    def decode")
            return before + name + after.replace("self.outward(z)", "self.outward(z) + 1"), config

        modeling, config = write(Limits(), False)
        return replace(made, modeling=modeling, config=config, write=write)

    monkeypatch.setattr(pipeline, "compiled", wrong)
    done = ported("--methods", "decode", "--inputs", "decode:z=float32[5,4]")
    assert done.exit_code == 1
    assert re.search(r"float32 +x float32\[5,6\] .* match", done.output)
    assert "decode: float32: B is off" in done.output
    # The proof at a second size finds it too, and holds the sizes.
    assert "its method decode is" in (Path("out/coder") / "README.md").read_text()
