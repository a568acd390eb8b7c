"""`migrate fit tpu:net.py:Net`: a step of torch_tpu as one program, compiled by the TPU's compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

pytestmark = pytest.mark.torch_tpu

NETS = Path(__file__).parents[1] / "parity" / "torch_tpu_nets.py"


def fitted(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    target = (f"tpu:{NETS}:{name}", "--inputs", "x=float32[64,4,8]")
    command = (sys.executable, "-m", "migrate", "fit", *target, *options, "--json")
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def test_a_step_of_training_is_one_program_with_its_optimizer() -> None:
    done = fitted("Dropping", "--train", "adamw", "--tpu", "v5e-1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (found,) = answer["slices"]
    assert (found["state"], found["devices"]) == ("fits", 1)
    assert found["compiler"].startswith("libtpu ")
    kinds = {held["kind"] for held in found["hbm"]["largest"]}
    assert {"parameter", "optimizer state", "input"} <= kinds
    assert any("operators of it one by one by default" in note for note in answer["notes"])


def test_the_chips_of_a_slice_average_their_gradients_in_buckets() -> None:
    done = fitted("Dropping", "--train", "adamw", "--tpu", "v5e-8")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    (found,) = answer["slices"]
    assert (found["state"], found["devices"]) == ("fits", 8)
    weights = 8 * 16 + 16 + 16 * 4 + 4
    assert [(c["kind"], c["bytes"], c["group"]) for c in found["collectives"]] == [
        ("all-reduce", 4 * weights, 8)
    ]
    assert any("averages the gradients in 1 bucket" in note for note in answer["notes"])


def test_a_mesh_is_refused_in_one_line() -> None:
    done = fitted("Dropping", "--tpu", "v5e-8", "--mesh", "data=8")
    assert (done.returncode, done.stdout) == (2, "")
    assert "leave --mesh" in done.stderr.splitlines()[-1]
