"""`migrate weights --target --inputs` and `migrate parity` with a Flax model whose names are its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from converters import load_pytree
from migrate.cli import commands
from migrate.parity.fitting.results import DIFFER, PROVEN

TORCH = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.other, self.third = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.third(self.other(torch.relu(self.second(torch.tanh(self.first(x))))).sin())


class Drawing(Net):
    def __init__(self):
        super().__init__()
        raise ValueError("no such file")
"""
FLAX = """
import jax.numpy as jnp
from flax import linen as nn


class Net(nn.Module):
    classes: int = 3
    wrong: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(6)(x))
        x = nn.gelu(nn.Dense(6)(x)) if self.wrong else nn.relu(nn.Dense(6)(x))
        return nn.Dense(self.classes)(jnp.sin(nn.Dense(6)(x)))


def sized(*, n_classes: int):
    return Net(n_classes)


def wide(*, width: int):
    return Net(width)


def wrong():
    return Net(wrong=True)


def raising():
    raise RuntimeError("the weights are not here")


def apply(params, x):
    return x


def start(key, x):
    shapes = {"a": (6, 4), "b": (6, 6), "c": (6, 6), "d": (6, 3)}
    made = {name: {"w": jnp.zeros(shape), "b": jnp.zeros(shape[0])} for name, shape in shapes.items()}
    made["d"]["b"] = jnp.zeros(3)
    return [made]


def run(params, x):
    (p,) = params
    x = jnp.tanh(x @ p["a"]["w"].T + p["a"]["b"])
    x = nn.relu(p["b"]["b"] + x @ p["b"]["w"])
    return jnp.sin(x @ p["c"]["w"] + p["c"]["b"]) @ p["d"]["w"] + p["d"]["b"]
"""


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(TORCH)
    (tmp_path / "flax_net.py").write_text(FLAX)
    torch.manual_seed(0)
    shapes = {"first": (6, 4), "second": (6, 6), "other": (6, 6), "third": (3, 6)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    torch.save(state, "net.pt")
    return tmp_path


FITTED = ("weights", "net.pt", "--model", "net.py:Net", "--inputs", "x=float32[5,4]")


@pytest.mark.long
def test_there_and_back_by_the_mapping_that_was_saved(here: Path) -> None:
    target = ("--target", "flax_net.py:sized", "-o", "a.safetensors", "--save-mapping", "map.yaml")
    done = run(*FITTED, *target)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith(PROVEN)
    assert "n_classes=3" in done.stdout  # what torch gives
    made = load_pytree(here / "a.safetensors")
    state = torch.load("net.pt")
    assert np.array_equal(made["params"]["Dense_1"]["kernel"], state["second.weight"].numpy().T)
    # Without running, and without either model.
    for name in ("net.py", "flax_net.py"):
        (here / name).rename(here / f"{name}.away")
    again = run("weights", "net.pt", "--mapping", "map.yaml", "-o", "b.safetensors")
    assert again.exit_code == 0, again.output
    assert (here / "b.safetensors").read_bytes() == (here / "a.safetensors").read_bytes()
    (here / "net.py.away").rename(here / "net.py")
    # A pytree with nothing beside it.
    (here / "b.torch.safetensors").unlink()
    back = ("--to", "torch", "--model", "net.py:Net", "--mapping", "map.yaml", "-o", "back.pt")
    assert (done := run("weights", "b.safetensors", *back)).exit_code == 0, done.output
    returned = torch.load("back.pt")
    assert all(torch.equal(returned[key], value) for key, value in state.items())


@pytest.mark.long
def test_a_function_with_a_pytree_of_its_own(here: Path) -> None:
    words = (
        "--target",
        "flax_net.py:start",
        "--target-apply",
        "flax_net.py:run",
        "-o",
        "a.safetensors",
    )
    done = run(*FITTED, *words)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].startswith(PROVEN)
    made = load_pytree(here / "a.safetensors")
    state = torch.load("net.pt")
    assert np.array_equal(made["0"]["a"]["w"], state["first.weight"].numpy())
    assert np.array_equal(made["0"]["b"]["w"], state["second.weight"].numpy().T)


@pytest.mark.long
def test_back_by_running_both(here: Path) -> None:
    made = run(*FITTED, "--target", "flax_net.py:Net", "-o", "a.safetensors")
    assert made.exit_code == 0, made.output
    (here / "a.torch.safetensors").unlink()
    words = ("--to", "torch", "--model", "flax_net.py:Net", "--target", "net.py:Net")
    done = run("weights", "a.safetensors", *words, "--inputs", "x=float32[5,4]", "-o", "back.pt")
    assert done.exit_code == 0, done.output
    assert PROVEN in done.stdout
    returned, state = torch.load("back.pt"), torch.load("net.pt")
    assert all(torch.equal(returned[key], value) for key, value in state.items())


IMAGE_TORCH = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))
"""
IMAGE_FLAX = """
from flax import linen as nn


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):  # channels first, as torch has them
        x = nn.relu(nn.Conv(4, (3, 3), padding="VALID")(x.transpose(0, 2, 3, 1)))
        return nn.Dense(2)(x.mean((1, 2)))
"""


@pytest.mark.long
@pytest.mark.parametrize("first", [True, False])
def test_a_target_of_another_environment_that_takes_channels_first(here: Path, first: bool) -> None:
    (here / "net.py").write_text(IMAGE_TORCH)
    (here / "flax_net.py").write_text(IMAGE_FLAX)
    shapes = {
        "conv.weight": (4, 3, 3, 3),
        "conv.bias": (4,),
        "head.weight": (2, 4),
        "head.bias": (2,),
    }
    torch.save({name: torch.randn(shape) for name, shape in shapes.items()}, "net.pt")
    python = here / "python"
    python.write_text(f'#!/bin/sh\necho ran >> {here / "ran"}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    words = ["--inputs", "x=float32[2,3,7,5]", "--target-python", "./python", "-o", "a.safetensors"]
    words += ["--target-channels-last", ""] if first else []
    done = run("weights", "net.pt", "--model", "net.py:Net", "--target", "flax_net.py:Net", *words)
    assert (here / "ran").exists()
    if first:
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines()[-1].startswith(PROVEN)
    else:  # it is given its images channels last, which it cannot take
        assert done.exit_code == 2, done.output
        assert "--target-channels-last" in done.stderr.splitlines()[-1], done.stderr
        assert not (here / "a.safetensors").exists()


DEEP_TORCH = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.deep(self.stem(x))).mean((2, 3)))
"""
DEEP_FLAX = """
import jax
from flax import linen as nn


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3), padding="VALID", name="stem")(x)
        x = nn.relu(nn.ConvTranspose(4, (3, 3), padding="VALID", name="deep")(x))
        return nn.Dense(2, name="head")(x.mean((1, 2)))


example = jax.ShapeDtypeStruct((2, 8, 8, 3), "float32")
"""


@pytest.mark.long
def test_the_checkpoint_alone_with_what_a_port_of_its_class_says(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "net.py").write_text(DEEP_TORCH)
    (here / "flax_net.py").write_text(DEEP_FLAX)
    monkeypatch.syspath_prepend(str(here))
    from net import Net

    monkeypatch.setitem(sys.modules, "net", sys.modules.pop("net"))  # gone after the test
    model = Net()
    torch.save(model, "whole.pt")
    torch.save(model.state_dict(), "state.pt")
    ported = run("port", "net.py:Net", "--inputs", "x=float32[2,3,8,8]", "-o", "port")
    assert ported.exit_code == 0, ported.output
    (here / "net.py").unlink()  # from here on there is no class of torch's
    target = ("--target", "flax_net.py:Net", "--target-inputs", "flax_net.py:example")
    says = {
        "state.pt": ["--mapping", here / "port" / "net" / "mapping.yaml"],
        "whole.pt": [],
    }
    turned = model.deep.weight.detach().numpy()[:, :, ::-1, ::-1].transpose(2, 3, 0, 1)
    for file, words in says.items():
        done = run("weights", file, *words, *target, "-o", f"{file}.safetensors")
        assert done.exit_code == 0, done.output
        made = load_pytree(here / f"{file}.safetensors")
        assert np.array_equal(made["params"]["deep"]["kernel"], turned), file


def test_an_interpreter_that_is_not_there_is_one_line(here: Path) -> None:
    done = run(*FITTED, "--target", "flax_net.py:Net", "--target-python", "no/python")
    assert done.exit_code == 2
    assert "no/python" in done.stderr.splitlines()[-1], done.stderr


def test_what_differs_is_not_written_unless_that_is_said(here: Path) -> None:
    wrong = (*FITTED, "--target", "flax_net.py:wrong", "-o", "a.safetensors", "--json")
    done = run(*wrong)
    assert done.exit_code == 1, done.output
    assert not (here / "a.safetensors").exists()
    found = json.loads(done.stdout)["fit"]
    assert not found["proven"]
    assert found["differences"][0]["layer"] == "Dense_3"
    assert found["differences"][0]["called"].startswith("flax_net.py:")


@pytest.mark.long
def test_the_unproven_is_written_where_that_is_said(here: Path) -> None:
    done = run(*FITTED, "--target", "flax_net.py:wrong", "-o", "a.safetensors", "--unproven")
    assert done.exit_code == 0, done.output
    assert f"{DIFFER}: first difference before Dense_3" in done.stdout
    assert (here / "a.safetensors").exists()


@pytest.mark.long
def test_parity_brings_weights_to_a_model_with_names_of_its_own(here: Path) -> None:
    words = ("--inputs", "x=float32[5,4]", "--count", "2", "--json")
    done = run("parity", "net.py:Net", "flax_net.py:sized", *words)
    assert done.exit_code == 0, done.output
    assert any(PROVEN in note for note in json.loads(done.stdout)["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--inputs x=float32[5,4]", "--target"),
        ("--unproven --target flax_net.py:Net", "--inputs"),
        ("--inputs x=float32[5,4] --target flax_net.py:Net --assume heads=2", "--assume"),
        ("--target-apply flax_net.py:run --target flax_net.py:start", "--inputs"),
        ("--inputs x=what --target flax_net.py:Net", "x=what"),
        ("--target-python python --target flax_net.py:Net", "--inputs"),
        ("--target-channels-last x --target flax_net.py:Net", "--inputs"),
    ],
)
def test_words_that_do_not_go_together_are_one_line(here: Path, words: str, said: str) -> None:
    done = run("weights", "net.pt", "--model", "net.py:Net", *words.split())
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]
    assert not list(here.glob("*.safetensors"))


def test_an_output_that_is_there_is_said_before_anything_runs(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for work in ("migrate.parity.run.fitted.fit_models", "converters.target.values.fit_values"):
        monkeypatch.setattr(work, lambda *_: pytest.fail("it ran"))
    mine = here / "a.safetensors"
    mine.write_bytes(b"mine")
    fitted = ("--target", "flax_net.py:Net", "--inputs", "x=float32[5,4]")
    back = ("--to", "torch", "--model", "flax_net.py:Net", "--target", "net.py:Net", *fitted[2:])
    for words in (
        ("net.pt", "--model", "net.py:Net", *fitted),
        ("net.pt", "--values", "--target", "theirs.safetensors"),
        ("net.flax.safetensors", *back),
    ):
        done = run("weights", *words, "-o", "a.safetensors")
        assert done.exit_code == 2, done.output
        assert "a.safetensors exists already" in done.stderr
        assert mine.read_bytes() == b"mine"


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "target", "said"),
    [
        ("net.py:Net", "flax_net.py:wide", "write flax_net.py:wide(width=…)"),
        ("net.py:Net", "flax_net.py:raising", "the weights are not here"),
        ("net.py:Net", "flax_net.py:apply", "the target is a function"),
        ("net.py:Net", "flax_net.py:Nothing", "has no Nothing"),
        ("net.py:Net", "flax_net.py:Net(x)", "no literals"),
        ("net.py:Drawing", "flax_net.py:Net", "no such file"),
        ("flax_net.py:Net", "flax_net.py:Net", "not a torch module"),
    ],
)
def test_models_that_cannot_be_run_are_one_line(
    here: Path, model: str, target: str, said: str
) -> None:
    words = ("--model", model, "--target", target, "--inputs", "x=float32[5,4]")
    done = run("weights", "net.pt", *words)
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1], done.stderr
    assert not list(here.glob("*.safetensors"))
