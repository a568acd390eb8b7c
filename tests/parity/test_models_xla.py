"""Models against torch_xla on the CPU, through the command: they match."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.pairs.real import INPUTS, minilm_folder
from tests.waiting import LIMIT

MIGRATE = Path(sys.executable).with_name("migrate")
REAL = Path(__file__).with_name("pairs") / "real.py"
pytestmark = [pytest.mark.long, pytest.mark.xla]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", INPUTS)
def test_torch_xla_matches(name: str) -> None:
    target = minilm_folder() if name == "minilm" else f"{REAL}:{name}"
    inputs = [word for one in INPUTS[name] for word in ("--inputs", one)]
    command = [
        "parity",
        target,
        f"xla:{target}",
        *inputs,
        "--count",
        "3",
        "--json",
    ]
    done = subprocess.run(
        [MIGRATE, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout)["verdict"] == "match"
