"""The proof of training mode: what it compares, and that it says what differs."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from flax import nnx
from torch import nn

from converters.checkpoint import flatten
from converters.graph import port
from converters.mapping.paths import Api
from migrate.cli import commands
from migrate.parity.ground.requests import Draw
from migrate.parity.tasks.modes import _dropouts
from migrate.port import nnx_texts, texts
from migrate.port.training_step import training_step
from tests.converters.graph import host_drawn, nnx_side, trained
from tests.converters.graph.conftest import load as load
from tests.converters.graph.flax_side import variables

ORIGINAL = (Draw(0.1, 1000), Draw(0.3, 50), Draw(-1.0, 8))


def measured(rate: float, count: int, kept: float = -1, scale: float = 0, alike: float = 0) -> Draw:
    kept = 1 - rate if kept < 0 else kept
    return Draw(rate, count, kept, scale or 1 / (1 - rate), alike)


PORT = (measured(0.3, 50), measured(0.1, 1000), measured(0.2, 8))


def failed(port: tuple[Draw, ...]) -> set[str]:
    return {check.name for check in _dropouts(ORIGINAL, port) if not check.passed}


def test_dropouts_of_the_same_rates_and_sizes_match() -> None:
    assert failed(PORT) == set()


@pytest.mark.parametrize(
    ("port", "name"),
    [
        (PORT[1:], "dropouts that differ"),
        ((*PORT[:1], measured(0.2, 1000), PORT[2]), "dropouts that differ"),
        ((*PORT, measured(0.1, 1000)), "dropouts that differ"),
        (PORT[:2], "dropouts that differ"),
        ((PORT[0], measured(0.1, 1000, kept=0.8), PORT[2]), "share that dropouts keep"),
        ((PORT[0], measured(0.1, 1000, scale=1.0), PORT[2]), "scale of what they keep"),
        ((PORT[0], measured(0.1, 1000, alike=30.0), PORT[2]), "dropouts alike"),
    ],
)
def test_what_differs_is_found(port: tuple[Draw, ...], name: str) -> None:
    assert failed(port) == {name}


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        ("Classifier", ["x=float32[4,3,9,8]"]),
        ("Labeled", ["ids=int64[2,5]<11", "labels=int64[2,5]<11"]),
        ("Frozen", ["x=float32[2,3,9,8]"]),
        ("Stacks", ["x=float32[2,4]"]),
        ("Memory", ["x=float32[2,5,4]"]),
        ("Sampled", ["x=float32[16,4]"]),
        ("Speech", ["x=float32[2,7,5]"]),
    ],
)
def test_training_is_part_of_the_proof(
    model: str, inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_host = hasattr(host_drawn, model)
    shutil.copy((host_drawn if of_host else trained).__file__, tmp_path / "net.py")
    monkeypatch.chdir(tmp_path)
    given = [word for one in inputs for word in ("--inputs", one)]
    words = ["port", f"net.py:{model}", *given, "-o", "ported", "--json"]
    done = CliRunner().invoke(commands, words)
    assert done.exit_code == 0, done.output
    proof = {case["name"]: case for case in json.loads(done.stdout)["proof"]}
    assert proof["training mode"]["verdict"] == "match"
    assert proof["gradients"]["verdict"] == "match"
    folder = tmp_path / "ported" / model.lower()
    readme = (folder / "README.md").read_text()
    assert "deterministic=False" in readme
    assert ("places=places" in readme) == of_host
    assert ("def trainable(" in (folder / "__init__.py").read_text()) == (model == "Frozen")


def test_layers_that_are_left_out_are_compared_by_their_rates() -> None:
    """A layer is one number, whose share says nothing: it is kept or dropped."""
    originals = (Draw(0.01, 1), Draw(0.01, 1))
    dropped, kept = Draw(0.01, 1, 0.0, 0.0, 0.0), Draw(0.01, 1, 1.0, 1 / 0.99, 0.0)
    assert all(check.passed for check in _dropouts(originals, (dropped, kept)))
    lacking = [check.name for check in _dropouts(originals, (kept,)) if not check.passed]
    assert lacking == ["dropouts that differ"]


class Normed(nn.Module):
    """A layer of each sort that changes the step: statistics and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.drop(self.norm(self.fc(x)))
        return x, x.argmax(dim=1)


REAL = {"x": torch.linspace(-1, 1, 20).reshape(5, 4)}
LINEAR = {"input": REAL["x"]}
LABELS = {"ids": torch.arange(8).reshape(2, 4), "labels": torch.arange(1, 9).reshape(2, 4)}


@pytest.mark.parametrize(
    ("make", "inputs", "api", "frozen", "has"),
    [
        (Normed, REAL, "linen", [], ["has_aux", "mutable", "rngs", "outputs[0] - target"]),
        (Normed, REAL, "linen", ["params/fc/bias"], ["optax.partition"]),
        (Normed, REAL, "nnx", ["fc/bias"], ["nnx.DiffState"]),
        (
            lambda: nn.Linear(4, 3),
            LINEAR,
            "linen",
            [],
            ["state, batch, target", "outputs - target"],
        ),
        (trained.Labeled, LABELS, "linen", [], ['outputs["loss"]', "labels=labels"]),
    ],
)
def test_the_step_of_the_readme_trains(
    make: Callable[[], nn.Module],
    inputs: dict[str, torch.Tensor],
    api: Api,
    frozen: list[str],
    has: list[str],
    tmp_path: Path,
    load: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    original = make().eval()
    written = port(original, inputs, api=api)
    step = training_step("a_port", written, bool(frozen))
    assert [text for text in has if text not in step] == []
    given = {name: jnp.asarray(tensor.numpy()) for name, tensor in inputs.items()}
    names: dict[str, Any] = {**given, "jax": jax, "nnx": nnx, "Any": Any}
    source = nnx_texts._TRAINABLE if api == "nnx" else texts._TRAINABLE
    exec(source.replace("FROZEN_PATHS", f"frozenset({frozen})"), names)
    package = types.ModuleType("a_port")
    package.trainable = names["trainable"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_port", package)
    if api == "nnx":
        model = nnx_side.loaded(written, tmp_path)
        model = nnx_side.with_weights(model, original, written, inputs)
        model.eval()
        names |= {"model": model, "outputs": model(**given)}
        arrays = nnx_side.variables(model)
        before = {path: jnp.array(arrays[path][...]) for path in arrays}
        exec(step, names)
        after = {path: variable[...] for path, variable in arrays.items()}
    else:
        model, weights = load(written), variables(original, written, inputs)
        names |= {"model": model, "variables": weights, "outputs": model.apply(weights, **given)}
        exec(step, names)
        before, after = flatten(weights), flatten(names["variables"])
    assert {path for path in before if np.array_equal(before[path], after[path])} == set(frozen)
