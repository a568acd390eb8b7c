"""Ports of small models with what strangers' models were found to have, from the file to the proof."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import load_file, save_file

from migrate.cli import commands
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import write_inputs
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.target import parse_target
from tests.port.refusals import no_place

# A forward that is a function of the constructor's own variables; a weight that is computed; an image made
# larger; a table of integers that no checkpoint has; a gate of zeros; layers that do nothing, before and
# behind what no layer computes.
ODD = """
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Gated(nn.Module):
    def __init__(self, dim):
        super().__init__()
        layers = self.layers = nn.ModuleDict({"fc": nn.Linear(dim, dim), "drop": nn.Dropout(0.1)})
        self.run = lambda x: layers["drop"](layers["fc"](x))
        self.gate = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x + self.gate * self.run(x)


class Odd(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.stem = weight_norm(nn.Conv2d(3, dim, 3, padding=1))
        self.gated = Gated(dim)
        self.bias = nn.Embedding(7, dim)
        self.register_buffer("places", torch.tensor([3, 3, 0, 6]).flip(0), persistent=False)
        self.norm = nn.Identity()
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.1))
        self.latent = nn.Identity()
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        x = self.stem(x)
        x = nn.functional.interpolate(x, size=(2, 2), mode="bilinear", align_corners=True)
        x = x.flatten(2).transpose(1, 2) + self.bias(self.places)
        x = self.gated(x)
        x = torch.softmax(x @ x.transpose(1, 2), -1) @ x
        x = self.out(self.norm(x))
        return self.head(self.latent(x.mean(1)))
"""
PLAIN = """
from torch import nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 5, 3)

    def forward(self, x):
        return self.conv(x).relu()
"""


def ported(source: str, name: str, inputs: str, folder: Path, *more: str) -> Result:
    (folder / "net.py").write_text(source)
    words = ["port", f"{folder}/net.py:{name}", "--inputs", inputs, "-o", str(folder / "ported")]
    return CliRunner().invoke(commands, [*words, "--count", "2", *more], catch_exceptions=False)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("odd")
    done = ported(ODD, "Odd", "x=float32[2,3,6,6]", folder, "--json")
    assert done.exit_code == 0, done.output
    return folder / "ported" / "odd", json.loads(done.stdout)


@pytest.mark.long
def test_an_odd_model_is_ported_and_proven(odd: tuple[Path, dict[str, Any]]) -> None:
    _, report = odd
    assert {case["name"]: case["verdict"] for case in report["proof"]} == {
        "float32": "match",
        "gradients": "match",
        "training mode": "match",
        "the precision of a TPU, emulated": "match",
        "batch 1": "match",
        "batch 3": "match",
    }


@pytest.mark.long
def test_zeros_hide_nothing_from_the_proof_and_stay_in_the_weights(
    odd: tuple[Path, dict[str, Any]],
) -> None:
    folder, report = odd
    assert any("noise on" in note for note in report["notes"])
    assert not np.any(load_file(folder / "params.safetensors")["params/gated/gate"])


@pytest.mark.long
def test_a_stored_table_of_integers_is_there_from_the_start(
    odd: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = odd
    assert load_file(folder / "constants.safetensors")["buffers/places"].tolist() == [6, 0, 3, 3]
    written = (folder / "__init__.py").read_text()
    assert 'convert.py wrote: `{"params": ..., "buffers": ...}`.' in written
    assert load_file(folder / "initial.safetensors")["places"].tolist() == [6, 0, 3, 3]
    assert 'stored, self.path, "places", (4,)' in (folder / "modeling.py").read_text()


@pytest.mark.long
def test_a_port_with_constants_is_compared_later(odd: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = odd
    words = [f"{folder.parents[1]}/net.py:Odd", f"port:{folder}", "--inputs", "x=float32[2,3,6,6]"]
    done = CliRunner().invoke(commands, ["parity", *words, "--count", "1"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.long
def test_a_model_without_sizes_is_made_of_an_empty_configuration(tmp_path: Path) -> None:
    done = ported(PLAIN, "Plain", "x=float32[2,3,9]", tmp_path)
    assert done.exit_code == 0, done.output
    assert "config: PlainConfig" in (tmp_path / "ported/plain/modeling.py").read_text()


# A straight-through estimator by `detach`; another one by a gradient of its own, which no recording shows.
STRAIGHT = """
import torch
from torch import nn


class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, 5)
        self.dec = nn.Linear(5, 4)

    def forward(self, x):
        z = 3 * self.enc(x)
        return self.dec(self.rounded(z))

    def rounded(self, z):
        return z + (torch.round(z) - z).detach()


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return torch.round(z)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Hidden(Rounded):
    def rounded(self, z):
        return Round.apply(z)


class Chosen(Rounded):
    def rounded(self, z):
        return z

    def forward(self, x):
        return super().forward(x).argmax(-1)
"""


def proof(done: Result) -> dict[str, dict[str, Any]]:
    return {case["name"]: case for case in json.loads(done.stdout)["proof"]}


@pytest.mark.long
def test_gradients_are_part_of_the_proof(tmp_path: Path) -> None:
    # Enough numbers that their errors in bfloat16 can be compared.
    done = ported(STRAIGHT, "Rounded", "x=float32[64,6]", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    case = proof(done)["gradients"]
    assert case["verdict"] == "match"
    assert case["worst_gradient"]["relative_l2"] < 1e-6
    folder = tmp_path / "ported/rounded"
    assert "jax.lax.stop_gradient(jnp.round(z) - z)" in (folder / "modeling.py").read_text()
    lines = (folder / "README.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| gradients |")]
    assert f"(gradient of {case['worst_gradient']['name']})" in row


def test_a_gradient_that_is_lost_is_exit_code_1_and_named(tmp_path: Path) -> None:
    done = ported(STRAIGHT, "Hidden", "x=float32[2,6]", tmp_path, "--json")
    assert done.exit_code == 1, done.output
    cases = proof(done)
    assert cases["float32"]["verdict"] == "match"
    assert cases["gradients"]["verdict"] == "differs"
    assert cases["gradients"]["worst_gradient"]["relative_l2"] == pytest.approx(1)
    page = (tmp_path / "ported/hidden/README.md").read_text()
    assert "**differs: the gradient of " in page


@pytest.mark.long
def test_a_model_whose_outputs_have_no_gradients_says_so(tmp_path: Path) -> None:
    done = ported(STRAIGHT, "Chosen", "x=float32[2,6]", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    assert proof(done)["gradients"]["skipped"] == "its outputs have no gradients"


# A head that the forward does not use, in each of the layers of a list; a table that no checkpoint has.
SPARE = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.spare = nn.Linear(dim, 2)

    def forward(self, x):
        return x + self.fc(x)


class Spare(nn.Module):
    def __init__(self, dim=6, depth=2):
        super().__init__()
        self.layers = nn.ModuleList([Layer(dim) for _ in range(depth)])
        self.register_buffer("table", torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0]), persistent=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.table
"""
LOADED = """
import sys
from pathlib import Path

import jax
import spare

variables = spare.load_params(Path(sys.argv[1]), spare.SpareConfig(**eval(sys.argv[2])))
jax.jit(spare.build().apply)(variables, x=jax.numpy.ones((2, 6)))
"""


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spare")
    done = ported(SPARE, "Spare", "x=float32[2,6]", folder, "--no-proof")
    assert done.exit_code == 0, done.output
    place = folder / "ported" / "spare"
    # What follows from fields is found out without a proof, too.
    assert "HELD" not in (place / "config.py").read_text()
    return place


def load(file: Path, folder: Path, sizes: str = "{}") -> str:
    """Load a file into the port, and run it; the last line of what it raises."""
    command = [sys.executable, "-c", LOADED, str(file), sizes]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


def test_weights_that_the_forward_does_not_use_are_no_surplus(spare: Path) -> None:
    assert (
        'frozenset(\n    [\n        "params/layers_#/spare/bias",'
        in (spare / "__init__.py").read_text()
    )
    assert load(spare / "params.safetensors", spare) == ""


def test_the_proof_passes_over_weights_that_the_forward_does_not_use(
    spare: Path, tmp_path: Path
) -> None:
    side, weights = load_runner(parse_target(f"port:{spare}"))
    assert weights is not None
    side.load_weights(weights)
    inputs = write_inputs(tmp_path / "inputs", [{"x": np.ones((2, 6), np.float32)}])
    side.prepare(SideSettings(), inputs)


def test_arrays_that_are_missing_are_refused_by_name(spare: Path) -> None:
    arrays = load_file(spare / "params.safetensors")
    less = {name: one for name, one in arrays.items() if name != "params/layers_1/fc/bias"}
    save_file(less, spare / "less.safetensors")
    said = load(spare / "less.safetensors", spare)
    assert f"{spare / 'less.safetensors'}: Spare lacks params/layers_1/fc/bias" in said


THIRD = ("params/layers_2/fc/bias", "params/layers_2/fc/kernel")


def test_arrays_that_the_model_has_no_place_for_are_refused_by_name(spare: Path) -> None:
    arrays = load_file(spare / "params.safetensors")
    more = {name.replace("layers_1", "layers_2"): one for name, one in arrays.items()} | arrays
    save_file(more, spare / "more.safetensors")
    said = load(spare / "more.safetensors", spare)
    assert f"{no_place('Spare', *THIRD)};" in said
    assert load(spare / "more.safetensors", spare, "{'depth': 3}") == ""


@pytest.mark.long
def test_its_own_checkpoint_through_its_own_convert(spare: Path) -> None:
    script = "import net, torch; torch.save(net.Spare(depth={}).state_dict(), '{}.pt')"
    for depth in (2, 3):
        code = script.format(depth, depth)
        subprocess.run([sys.executable, "-c", code], cwd=spare.parents[1], check=True)
    assert _convert(spare, "2.pt") == ""
    assert load(spare / "made.safetensors", spare) == ""
    assert _convert(spare, "3.pt").endswith(
        f"{no_place('Spare', *THIRD)}; give the config of its size"
    )
    assert _convert(spare, "3.pt", "--size", "depth=3") == ""
    assert load(spare / "made.safetensors", spare, "{'depth': 3}") == ""
    assert "lacks params/layers_2/fc/bias" in _convert(spare, "2.pt", "--size", "depth=3")
    assert "--size wrong: config.py has dim, depth" in _convert(spare, "2.pt", "--size", "wrong=3")


def _convert(folder: Path, checkpoint: str, *more: str) -> str:
    """Run convert.py; the last line of what it says where it refuses."""
    output = folder / "made.safetensors"
    output.unlink(missing_ok=True)
    source = folder.parents[1] / checkpoint
    command = [sys.executable, "convert.py", str(source), str(output), *more]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode in (0, 2), done.stderr
    assert output.exists() == (done.returncode == 0)
    return done.stderr.strip().rpartition("\n")[2]
