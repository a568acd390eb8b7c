import json
import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import LIMIT

PROGRAMS = Path(__file__).parents[1] / "programs"


def test_torch_is_what_it_was_after_an_uninstall() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "uninstalling.py")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"changed": [], "unlisted": [], "twice": True}
