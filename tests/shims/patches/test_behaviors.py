"""One suite for every place: the same unedited programs, the same results."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

PROGRAMS = Path(__file__).parents[1] / "programs"
TPU = pytest.param("tpu", marks=pytest.mark.torch_tpu)
PLACES = ["cpu", pytest.param("xla", marks=pytest.mark.xla), TPU]


def run(place: str, program: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "shims", "--ranks", "2", "--backend", place, str(program), *args],
        env={**os.environ, "OMP_NUM_THREADS": "1", **more},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    return [float(text) for text in re.findall(r"loss (\d\.\d+)", done.stdout)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long_cases("xla", "cpu")
def test_collectives_and_batch_norm(place: str, tmp_path: Path) -> None:
    done = run(place, PROGRAMS / "nccl_collectives.py", str(tmp_path), place)
    assert "rank 0 of 2 is right" in done.stdout
    assert "rank 1 of 2 is right" in done.stdout


@pytest.mark.parametrize(
    "other", [pytest.param("xla", marks=[pytest.mark.xla, pytest.mark.long]), TPU]
)
def test_training_gives_the_same_losses_and_checkpoints(other: str, tmp_path: Path) -> None:
    import torch

    found = {}
    for place in ("cpu", other):
        (tmp_path / place).mkdir()
        found[place] = losses(run(place, PROGRAMS / "cuda_training.py", str(tmp_path / place)))
    assert len(found["cpu"]) == 8
    assert found[other] == pytest.approx(found["cpu"], abs=1e-5)
    # Without the shims, torch_xla and torch_tpu.
    on_cpu, on_other = (
        torch.load(tmp_path / place / "checkpoint.pt")["model"] for place in ("cpu", other)
    )
    assert on_cpu.keys() == on_other.keys()
    for name, value in on_cpu.items():
        assert torch.allclose(value, on_other[name], atol=1e-5), name


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long_cases("xla", "cpu")
def test_training_in_mixed_precision(place: str, tmp_path: Path) -> None:
    found = losses(run(place, PROGRAMS / "cuda_training.py", str(tmp_path), "amp"))
    assert len(found) == 8
    assert all(0 < loss < 2 for loss in found)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.long_cases("cpu")
def test_spawned_ddp_trains_to_the_same_losses(place: str, tmp_path: Path) -> None:
    source = (Path(__file__).parents[3] / "examples" / "ddp_toy" / "before.py").read_text()
    script = tmp_path / "train.py"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    seeded = "torch.manual_seed(42)\n    model = ToyModel()"
    for old, new in (
        ('"gloo"', '"nccl"'),
        (":.4f}", ":.8f}"),
        ("12355", port),
        ("model = ToyModel()", seeded),
    ):
        assert old in source
        source = source.replace(old, new)
    script.write_text(source)
    found = losses(run(place, script))
    # What gloo on the CPU gives without any shim.
    assert found == pytest.approx([1.99060130, 0.76415336, 0.41888529], abs=1e-5)


@pytest.mark.xla
def test_what_xla_refuses_names_the_call_and_its_line(tmp_path: Path) -> None:
    script = tmp_path / "graph.py"
    script.write_text("import torch\n\ntorch.cuda.CUDAGraph()\n")
    done = subprocess.run(
        [sys.executable, "-m", "shims", "--ranks", "1", "--backend", "xla", str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"torch.cuda.CUDAGraph at {script}:3 has no answer here" in last
