"""Lazy layers that a CUDA script moves before their first forward."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

PROGRAM = Path(__file__).parents[1] / "programs" / "lazy_layers.py"


@pytest.mark.parametrize("place", ["cpu", pytest.param("xla", marks=pytest.mark.xla)])
@pytest.mark.long_cases("cpu")
def test_their_weights_are_made_on_the_device(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shims", "--ranks", "1", "--backend", place, str(PROGRAM)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
