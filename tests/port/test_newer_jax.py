"""Ports that are written here run on the JAX and Flax that newer Pythons have.

`make test-newer-jax` makes the environments that they need (`.venv-jax-0.11`, `.venv-jax-0.12`) and runs
this; with `-rP`, pytest shows what was measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from benchmarks.zoo_models import gallery
from converters.graph import port
from tests.converters.graph.flax_side import variables
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[2]
# Pythons of the environments, as `os.pathsep` parts paths.
NAMED = os.environ.get("NEWER_JAX_PYTHONS", "")
PYTHONS = [Path(one) for one in NAMED.split(os.pathsep) if one] or [
    ROOT / f".venv-jax-{version}/bin/python" for version in ("0.11", "0.12")
]
WORKER = Path(__file__).with_name("newer_jax_port.py")
PORTS = (
    *("mlp", "lstm_tagger", "llama", "gemma3", "mixtral", "mamba", "t5"),
    *("whisper", "clip_vision", "vit", "convnext", "swin"),
)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not any(one.exists() for one in PYTHONS),
        reason="make test-newer-jax makes the environments",
    ),
]


def leaves(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "to_tuple"):
        value = dict(value.items())
    if isinstance(value, dict):  # by the order of their keys, as JAX has them
        return [leaf for name in sorted(value) for leaf in leaves(value[name])]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in leaves(one)]
    return []


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: np.asarray(tree)}
    return {
        key: leaf
        for name, one in tree.items()
        for key, leaf in flat(one, f"{path}/{name}" if path else name).items()
    }


def written(name: str, folder: Path) -> dict[str, Any]:
    """Write a port with what torch gives; the facts that the other interpreter is told."""
    model, inputs = gallery.build(name)
    made = port(model, inputs)
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "modeling.py").write_text(made.modeling)
    (package / "config.py").write_text(made.config)
    if made.initial:
        save_file(dict(made.initial), package / "initial.safetensors")
    outputs = leaves(model(**inputs))
    loss = sum(
        (one * torch.arange(1.0, 1 + one.numel()).reshape(one.shape) / one.numel()).sum()
        for one in outputs
        if one.is_floating_point()
    )
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    squares = [one.grad.square().sum() for one in model.parameters() if one.grad is not None]
    save_file(flat(variables(model, made, inputs)), folder / f"{name}.safetensors")
    narrow = {
        key: one.numpy().astype(np.int32) if one.dtype == torch.int64 else one.numpy()
        for key, one in inputs.items()
    }
    save_file(narrow, folder / f"{name}.inputs.safetensors")
    arrays = {str(place): one.detach().contiguous().numpy() for place, one in enumerate(outputs)}
    save_file(arrays, folder / f"{name}.outputs.safetensors")
    norm = float(torch.stack(squares).sum().sqrt())
    return {"model": made.model_class, "config": made.config_class, "norm": norm}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ports")
    facts = {name: written(name, folder) for name in PORTS}
    (folder / "facts.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize("python", PYTHONS, ids=lambda one: one.parents[1].name)
def test_ports_compute_what_torch_does(python: Path, ports: Path) -> None:
    if not python.exists():
        pytest.skip(f"there is no {python}")
    # -W error: what a newer JAX deprecates is known before it is gone.
    command = [python, "-W", "error::DeprecationWarning", WORKER, ports]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    said = [f"jax {found['jax']}, flax {found['flax']}"]
    for name, one in found["ports"].items():
        said += [f"  {name}: outputs {one['outputs']:.1e}, gradients {one['gradients']:.1e}"]
    sys.stdout.write("\n".join(said))
    assert set(found["ports"]) == set(PORTS)
    assert all(one["outputs"] <= 1e-5 for one in found["ports"].values())
    assert all(one["gradients"] <= 1e-4 for one in found["ports"].values())
