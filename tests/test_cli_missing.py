"""Frameworks that are not installed: one line with the command that installs them, from every command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.cli import commands

MIGRATE = Path(sys.executable).with_name("migrate")
FRAMEWORKS = "torch torch_xla jax jaxlib flax optax orbax libtpu transformers"
# Blocks imports in the process of the command and in all that it starts.
BLOCKING = """\
import os
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked())
"""
FILES = {
    "train.py": "import torch\n\nnet = torch.nn.Linear(4, 3).cuda()\n",
    "net.py": "import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 3)\n",
    "flax_net.py": "from flax import linen\n\n\ndef make():\n    return linen.Dense(3)\n",
    "block/sitecustomize.py": BLOCKING,
}
INPUTS = "--inputs x=float32[2,4]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np
    from safetensors.numpy import save_file

    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    arrays = {"weight": np.ones((3, 4), np.float32), "bias": np.ones(3, np.float32)}
    save_file(arrays, tmp_path / "net.safetensors")
    return tmp_path


def without(blocked: str, folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MIGRATE, *words.split()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "block"), "BLOCKED": blocked},
        capture_output=True,
        text=True,
        check=False,
    )


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"__pycache__"}


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("…")]
    return line


@pytest.mark.parametrize(
    ("words", "first", "extras"),
    [
        ("run train.py", "torch", "xla"),
        pytest.param("run train.py --rewrite", "torch", "xla", marks=pytest.mark.long),
        ("prove train.py", "torch", "xla"),
        pytest.param("prove train.py --record x.rec", "torch", "torch", marks=pytest.mark.long),
        ("fit train.py", "torch", "xla,tpu"),
        pytest.param(f"fit net.py:make {INPUTS}", "jax", "tpu", marks=pytest.mark.long),
        ("assess . --script train.py", "torch", "xla,tpu"),
        ("train train.py -o program", "torch", "port"),
        pytest.param("prove train.py --against .", "torch", "torch,jax", marks=pytest.mark.long),
        (f"port net.py:make {INPUTS} -o ported", "torch", "port"),
        (f"parity net.py:make flax_net.py:make {INPUTS}", "side A: torch", "torch"),
        pytest.param(
            f"parity flax_net.py:make net.py:make {INPUTS}",
            "side A: flax",
            "jax",
            marks=pytest.mark.long,
        ),
        ("weights net.safetensors -o out.safetensors", "torch", "torch"),
        pytest.param(
            "weights net.safetensors --model net.py:make -o out.safetensors",
            "torch",
            "torch",
            marks=pytest.mark.long,
        ),
    ],
)
def test_nothing_is_installed(folder: Path, words: str, first: str, extras: str) -> None:
    before = files(folder)
    done = without(FRAMEWORKS, folder, words)
    line = one_line(done)
    assert words.startswith("assess") or "rewrote" not in done.stderr
    expected = f"migrate: {first} is not installed; pip install '.[{extras}]' in a clone"
    assert line.startswith(expected)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("blocked", "words", "line"),
    [
        ("torch_xla", "run train.py", "torch_xla is not installed; pip install '.[xla]'"),
        pytest.param(
            "torch_xla",
            "prove train.py",
            "torch_xla is not installed; pip install '.[xla]'",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "torch_xla",
            "fit train.py",
            "torch_xla is not installed; pip install '.[xla]'",
            marks=pytest.mark.long,
        ),
        ("libtpu", "fit train.py", "libtpu is not installed; pip install '.[tpu]'"),
        pytest.param(
            "libtpu",
            "assess . --script train.py",
            "libtpu is not installed; pip install '.[tpu]'",
            marks=pytest.mark.long,
        ),
        (
            "flax",
            f"parity flax_net.py:make flax_net.py:make {INPUTS}",
            "side A: flax is not installed; pip install '.[jax]'",
        ),
    ],
)
def test_one_framework_is_missing(folder: Path, blocked: str, words: str, line: str) -> None:
    expected = f"migrate: {line} in a clone of tpu-migrate"
    assert one_line(without(blocked, folder, words)) == expected


@pytest.mark.parametrize(
    "words",
    [
        "run train.py --target torch_tpu",
        pytest.param("prove train.py --target torch_tpu", marks=pytest.mark.long),
        pytest.param(f"fit tpu:net.py:make {INPUTS}", marks=pytest.mark.long),
        f"parity net.py:make tpu:net.py:make {INPUTS}",
    ],
)
def test_torch_tpu_is_missing(folder: Path, words: str) -> None:
    line = one_line(without("torch_tpu", folder, words))
    assert "torch_tpu" in line
    assert "make install-torch-tpu" in line


@pytest.mark.parametrize("words", ["rewrite train.py", "check train.py --select XLA1"])
def test_what_needs_no_framework(folder: Path, words: str) -> None:
    done = without(FRAMEWORKS, folder, words)
    assert done.returncode == 0, done.stderr


def test_a_job_is_written_without_the_frameworks(folder: Path) -> None:
    (folder / "xla.py").write_text("import torch_xla\n\ntorch_xla.launch(print)\n")
    words = (
        "--tpu v5e-8 --zone us-central1-a --with gcloud --bucket gs://lab/run --no-resume -o job"
    )
    done = without(FRAMEWORKS, folder, f"launch xla.py {words}")
    assert done.returncode == 0, done.stderr
    assert (folder / "job" / "start.sh").is_file()


def test_doctor_lists_what_is_ready(folder: Path) -> None:
    done = without(FRAMEWORKS, folder, "doctor")
    assert done.returncode == 0, done.stderr
    assert "fit for use" not in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    ready = [words[1] for words in lines if words[:1] == ["ready"]]
    assert ready == ["rewrite", "check", "launch"]
    (run,) = [line for line in done.stdout.splitlines() if line.startswith("not ready  run ")]
    assert "torch, torch_xla not installed" in run
    assert run.endswith("pip install '.[xla]'")
    assert "3 of 11 commands ready" in done.stdout
    listed = {
        words[1] if words[0] == "ready" else words[2] for words in lines if "ready" in words[:2]
    }
    assert not [line for line in done.stdout.splitlines() if line.startswith("missing")]
    assert "enough to rewrite, check and launch" in done.stdout
    assert listed >= set(commands.commands) - {"doctor", "completion"}


def test_chips_are_not_checked_without_a_framework(folder: Path) -> None:
    done = without(FRAMEWORKS, folder, "doctor --devices")
    assert done.returncode == 1, done.stderr
    assert "no chip was checked: jax and torch_xla are not installed" in done.stdout
    assert "pip install '.[xla]'" in done.stdout
