"""examples/portable: one source, the same training on the CPU, on XLA, and as its CUDA original."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from shims import activate
from tests.waiting import LIMIT

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "portable"
CPU = {"MIGRATE_BACKEND": "cpu", "MIGRATE_RANKS": "2"}
XLA = activate.environment("simulate", 2)


def run(script: str, checkpoint: Path, variables: dict[str, str], *args: str) -> str:
    if variables is XLA and importlib.util.find_spec("torch_xla") is None:
        pytest.skip("torch_xla is not installed")
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--checkpoint", str(checkpoint), *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        cwd=checkpoint.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load(path: Path) -> dict[str, Any]:
    """As a program without torch_xla does."""
    # Without an import of torch_xla; map_location is not given either.
    checkpoint = torch.load(path, weights_only=True)
    assert {value.device.type for value in checkpoint["model"].values()} == {"cpu"}
    return checkpoint


def losses(checkpoint: dict[str, Any]) -> torch.Tensor:
    """(epoch, rank, step)."""
    return torch.tensor(checkpoint["history"], dtype=torch.float64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("portable")


@pytest.fixture(scope="module")
def on_cpu(folder: Path) -> dict[str, Any]:
    printed = run("train.py", folder / "cpu.pt", CPU)
    epochs = re.findall(r"epoch \d: test loss \d\.\d{4}, accuracy (\d+\.\d)%", printed)
    assert len(epochs) == 3
    # It learns: chance is 5 %.
    assert float(epochs[-1]) > 20
    return load(folder / "cpu.pt")


@pytest.mark.long
def test_the_cpu_computes_what_the_cuda_original_does(folder: Path, on_cpu: dict[str, Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = activate.environment("cpu", 2) | {"MASTER_PORT": port}
    run("cuda_original.py", folder / "original.pt", variables)
    original = load(folder / "original.pt")
    assert torch.equal(losses(original), losses(on_cpu))
    for name, weight in original["model"].items():
        assert torch.equal(weight, on_cpu["model"][name]), name
    assert original.keys() == on_cpu.keys()


@pytest.mark.long
def test_xla_computes_what_the_cpu_does(folder: Path, on_cpu: dict[str, Any]) -> None:
    run("train.py", folder / "xla.pt", XLA)
    on_xla = load(folder / "xla.pt")
    assert losses(on_xla).shape == (3, 2, 8)
    torch.testing.assert_close(losses(on_xla), losses(on_cpu), rtol=1e-5, atol=0)
    assert list(on_xla["model"]) == list(on_cpu["model"])
    for name, weight in on_cpu["model"].items():
        difference = (on_xla["model"][name] - weight).norm() / weight.norm()
        assert difference <= 1e-5, (name, difference)
    assert on_xla["optimizer"]["param_groups"] == on_cpu["optimizer"]["param_groups"]
    assert on_xla["scaler"] == on_cpu["scaler"]


@pytest.mark.long
def test_training_goes_on_where_another_backend_stopped(
    folder: Path, on_cpu: dict[str, Any]
) -> None:
    path = folder / "resumed.pt"
    run("train.py", path, CPU, "--epochs", "1")
    printed = run("train.py", path, XLA, "--epochs", "2")
    assert re.findall(r"epoch \d", printed) == ["epoch 1"]
    resumed = load(path)
    torch.testing.assert_close(losses(resumed), losses(on_cpu)[:2], rtol=1e-5, atol=0)


@pytest.mark.long
def test_mixed_precision_computes_in_bfloat16(folder: Path, on_cpu: dict[str, Any]) -> None:
    run("train.py", folder / "amp.pt", XLA, "--amp", "--epochs", "1")
    first = losses(load(folder / "amp.pt"))[0]
    exact = losses(on_cpu)[0]
    # Not float32 in silence, and not far from it.
    assert not torch.allclose(first, exact, rtol=1e-6, atol=0)
    assert torch.allclose(first, exact, rtol=2**-7, atol=0)


def test_the_guide_shows_these_scripts() -> None:
    page = (FOLDER.parents[1] / "docs" / "shims" / "portable.md").read_text()
    blocks = re.findall(r"```python\n(.*?)\n```", page, flags=re.DOTALL)
    assert len(blocks) >= 16
    # In each row of the table the original stands left.
    for index, block in enumerate(blocks):
        source = (FOLDER / ("train.py" if index % 2 else "cuda_original.py")).read_text()
        indented = [textwrap.indent(block, "    " * depth) for depth in range(4)]
        assert any(text in source for text in indented), block
