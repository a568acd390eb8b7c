"""examples/parity_precision: the two cases of the page, as scripts that fail if they do not show it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "parity_precision"

needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(FOLDER / script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_top_token_flips_in_one_pass_and_only_there() -> None:
    output = run("one_pass.py")
    assert "float32 on the CPU parts from float64 in 0 of 4 rows" in output
    assert "six passes part from float64 in 0" in output
    assert "one pass parts from float64 in 3" in output
    for flip in ("row 0, token 19: 33 becomes 212", "row 1, token 8: 444 becomes 458"):
        assert flip in output


@needs_libtpu
@pytest.mark.long
def test_a_token_is_lost_that_no_cpu_loses() -> None:
    output = run("top_k.py")
    assert "source: top_k.py:" in output
    assert "no pass, cannot be seen on this device" in output
    assert "of 256 elements one survives" in output
    assert "lost: the first 0.0% of the time" in output


@needs_libtpu
@pytest.mark.xla
@pytest.mark.long  # three processes, each with torch_xla and transformers
def test_the_top_token_flips_with_excess_precision() -> None:
    output = run("excess.py")
    assert "rows part:" in output
    assert "roundings left out by libtpu" in output
    assert "aten__" in output
