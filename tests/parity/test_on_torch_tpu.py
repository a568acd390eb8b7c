"""`migrate parity net.py:Net tpu:net.py:Net`: torch and torch_tpu on a simulated TPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shims.simulate_tpu import NOT_SHOWN
from tests.waiting import LIMIT

pytestmark = pytest.mark.torch_tpu

NETS = Path(__file__).with_name("torch_tpu_nets.py")
LINES = NETS.read_text().splitlines()


def compared(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    target = f"{NETS}:{name}"
    inputs = ("--inputs", "x=float32[2,4,8]", "--count", "1")
    command = (
        sys.executable,
        "-m",
        "migrate",
        "parity",
        target,
        f"tpu:{target}",
        *inputs,
        *options,
    )
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)


def report(name: str, *options: str) -> dict[str, Any]:
    done = compared(name, "--json", *options)
    assert done.returncode in (0, 1), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def place_of(text: str) -> str:
    number = next(number for number, line in enumerate(LINES, 1) if text in line)
    return f"torch_tpu_nets.py:{number}"


def test_layers_agree_and_a_lost_gradient_is_a_difference() -> None:
    answer = report("Pooled", "--gradients")
    side = answer["sides"]["b"]
    assert (side["framework"], side["device"]) == ("tpu", "XLA:CPU as a TPU")
    assert side["versions"]["torch_tpu"] == "0.2.0"
    assert f"not shown: {NOT_SHOWN}" in side["notes"][0]
    assert {layer["verdict"] for layer in answer["layers"]} == {"match"}
    passed = {section["name"]: section["passed"] for section in answer["sections"]}
    assert passed == {"outputs": True, "gradients": False}


def test_the_layer_where_they_part_is_named() -> None:
    answer = report("Parting")
    assert (answer["verdict"], answer["first"]["name"]) == ("B is worse", "second")


def test_all_operators_that_are_not_implemented_are_named_with_their_lines() -> None:
    done = compared("Missing")
    assert (done.returncode, done.stdout) == (2, "")
    said = done.stderr.splitlines()[-1]
    assert "torch_tpu does not implement" in said
    for operator, text in (
        ("aten::linalg_cholesky_ex.L", "torch.linalg.cholesky"),
        ("aten::_upsample_bilinear2d_aa.out", "nn.functional.interpolate"),
    ):
        assert f"{operator} (" in said
        assert place_of(text) in said
