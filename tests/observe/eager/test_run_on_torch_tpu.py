"""`migrate run --target torch_tpu` on simulated TPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shims._shared.ports import free_port
from tests.waiting import LIMIT

pytestmark = pytest.mark.torch_tpu

PROGRAM = Path(__file__).with_name("programs.py")
LINES = PROGRAM.read_text().splitlines()


def run(kind: str, code: int) -> dict[str, Any]:
    command = ("-m", "migrate", "run", str(PROGRAM), "--target", "torch_tpu", "--json", "--")
    done = subprocess.run(
        [sys.executable, *command, kind, str(free_port())],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == code, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)["report"]
    return report


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


def test_ranks_losses_compilations_and_shapes_are_reported() -> None:
    report = run("plain", 0)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    for rank in report["ranks"]:
        assert (rank["steps"], rank["parameters"], rank["changed"]) == (3, 2, 2)
        assert 0 < rank["last_loss"] < 5
        assert rank["first_loss"] != rank["last_loss"]
        assert not rank["error"]
    (change,) = report["new_shapes"]
    assert (change["step"], change["ranks"]) == (2, [0, 1])
    assert change["shape"] == "f32[8, 6] → f32[3, 6]"
    assert change["line"]["line"] == line_of("model(inputs)")
    places = {(entry["line"]["line"], entry["backward"]) for entry in report["compiled"]}
    assert (line_of("loss.backward()"), True) in places
    assert "not shown: a TPU's products and sums of bfloat16" in report["simulated"]


def test_an_operator_that_is_not_implemented_is_named_with_its_line() -> None:
    report = run("cholesky", 1)
    (failed,) = [rank for rank in report["ranks"] if rank["error"]]
    assert (failed["rank"], failed["not_implemented"]) == (1, "aten::linalg_cholesky_ex.L")
    assert failed["error_line"]["line"] == line_of("torch.linalg.cholesky")


def test_an_optimizer_made_before_the_move_trains_nothing() -> None:
    (optimizer,) = run("early", 1)["untrained"]
    assert (optimizer["name"], optimizer["steps"], optimizer["ranks"]) == ("SGD", 3, [0, 1])
    assert optimizer["line"]["line"] == line_of("early = ")


def test_weights_that_do_not_change_are_a_finding() -> None:
    assert [rank["changed"] for rank in run("still", 1)["ranks"]] == [0, 0]
