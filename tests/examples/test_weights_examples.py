"""The examples of weights: they run, agree with torch, and notice when they do not."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@functools.cache
def run_example(name, folder):
    """Run a copy's or the real `run.py` with warnings as errors, elsewhere than in its folder."""
    return subprocess.run(
        [sys.executable, "-W", "error", folder / name / "run.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def difference(output):
    return float(re.search(r"max \|flax - torch\| = (\S+)", output)[1])


@pytest.mark.parametrize(
    ("name", "tolerance"), [("mlp", 1e-6), ("minilm", 1e-5), ("resnet_target", 1e-5)]
)
@pytest.mark.long_cases("minilm-1e-05", "resnet_target-1e-05")
def test_outputs_equal_torchs(name, tolerance):
    run = run_example(name, EXAMPLES)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stderr == ""
    assert difference(run.stdout) <= tolerance
    assert run.stdout.endswith(f"equal to {tolerance:g}\n")


def test_minilm_tells_meanings_apart():
    """It is the trained model: related sentences are closer than unrelated ones."""
    output = run_example("minilm", EXAMPLES).stdout
    assert "104 keys: 103 mapped, 0 tied, 1 dropped, 0 refused" in output
    cosines = [float(value) for value in re.findall(r"cosine (\S+)", output)]
    guitar, bank, unrelated = cosines
    assert min(guitar, bank) > 0.4 > 0.2 > unrelated


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "file", "right", "wrong"),
    [
        ("mlp", "flax_mlp.py", "nn.relu(self.fc2(x))", "nn.gelu(self.fc2(x))"),
        ("minilm", "bert.py", "approximate=False", "approximate=True"),
        ("minilm", "bert.py", "[:, None, None, :].astype(bool)", "[:, None, None, :] >= 0"),
    ],
)
def test_a_port_that_differs_fails(tmp_path, name, file, right, wrong):
    (tmp_path / name).mkdir()
    for source in (EXAMPLES / name).glob("*.py"):
        text = source.read_text()
        if source.name == file:
            assert text.count(right) == 1
            text = text.replace(right, wrong)
        (tmp_path / name / source.name).write_text(text)
    run = run_example(name, tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "NOT EQUAL" in run.stdout
