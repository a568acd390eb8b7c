"""examples/parity_port: the commands of its README."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LIMIT

FOLDER = Path(__file__).parents[2] / "examples/parity_port"
MIGRATE = Path(sys.executable).with_name("migrate")


def compared(port: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the JSON, of comparing net.py with this port."""
    done = subprocess.run(
        [MIGRATE, "parity", "net.py:Net", port, "--inputs", "x=float32[2,3,16,12]", "--json"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.long
def test_the_first_mistake_is_named_and_all_are_found() -> None:
    code, found = compared("flax_net.py:Net")
    assert code == 1
    assert found["first"]["name"] == "stem"
    assert found["causes"][0]["name"] == "padding-same"
    parting = {one["name"] for one in found["layers"] if one["verdict"] == "B parts"}
    assert parting == {"stem", "blocks.0", "blocks.0.norm", "blocks.1", "blocks.1.norm"}


@pytest.mark.long
def test_the_corrected_port_matches() -> None:
    code, found = compared("flax_net.py:corrected")
    assert code == 0
    assert found["verdict"] == "match"
