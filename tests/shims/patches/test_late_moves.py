"""Moves as CUDA scripts write them: after the optimizer, with tied weights, inputs left to DDP."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

PROGRAM = Path(__file__).parents[1] / "programs" / "late_moves.py"


def losses(place: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-m", "shims", "--ranks", "2", "--backend", place, str(PROGRAM), place],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"rank 0 moved", "rank 1 moved"} <= set(done.stdout.splitlines())
    assert ("refused" in done.stdout) == (place == "xla")
    return [float(text) for text in re.findall(r"loss (\d\.\d+)", done.stdout)]


def test_on_the_cpu() -> None:
    found = losses("cpu")
    assert len(found) == 3
    assert found[2] < found[0]


@pytest.mark.xla
@pytest.mark.long
def test_an_optimizer_from_before_the_move_trains_the_model_on_xla() -> None:
    assert losses("xla") == pytest.approx(losses("cpu"), abs=1e-5)
