"""The models of transformers 5 (torch) against the Flax models of transformers 4: they match.

`make test-flax4` makes the environment that they need, `.venv-flax4`; `--python-b` runs side B in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parity.pairs.real import minilm_folder
from tests.waiting import LIMIT

ROOM = Path(__file__).with_name("pairs")
MIGRATE = Path(sys.executable).with_name("migrate")
PYTHON = Path(os.environ.get("FLAX4_PYTHON", Path(__file__).parents[2] / ".venv-flax4/bin/python"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-flax4 makes the environment"),
]
OPTIONS = {
    "minilm": ("--inputs", f"{ROOM}/batches.py:minilm"),
    "llama": ("--inputs", f"{ROOM}/batches.py:llama"),
    "gemma": ("--inputs", f"{ROOM}/batches.py:gemma"),
    "vit": ("--inputs", "pixel_values=float32[2,3,16,16]"),
    # This one takes its spectrograms as torch's does.
    "whisper": ("--inputs", f"{ROOM}/batches.py:whisper", "--channels-last-b", ""),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_flax_model_matches(name: str) -> None:
    target = minilm_folder() if name == "minilm" else f"{ROOM}/real.py:{name}"
    other = f"linen:{ROOM}/flax4.py:{name}"
    options = [*OPTIONS[name], "--python-b", str(PYTHON), "--count", "3", "--json"]
    done = subprocess.run(
        [MIGRATE, "parity", target, other, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env={**os.environ, "MINILM": minilm_folder()},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout)["verdict"] == "match"
