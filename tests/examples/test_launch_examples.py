"""Each launch style: what the tool writes, and that two replicas of it train as two processes did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.check.hazard import Severity
from migrate.prove.run import run_script
from migrate.rewrite.pipeline import rewrite
from tests.waiting import LIMIT

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(folder.name for folder in EXAMPLES.glob("launch_*"))
ROOT = EXAMPLES.parent
# Starts its processes with `Process` itself, which `python -m shims` does not see by itself.
START = {"launch_process": ["--start", "alone"]}


@pytest.mark.parametrize("name", NAMES)
def test_after_is_what_the_tool_writes(name: str) -> None:
    done = rewrite(EXAMPLES / name / "before.py")
    assert done.data.decode() == (EXAMPLES / name / "after.py").read_text()
    # The options of the launch stay, and nothing reads them any more.
    assert [note for note in done.findings if note.severity is not Severity.INFO] == []


def losses(output: str) -> list[str]:
    """Return the lines of the replicas, sorted."""
    return sorted(re.findall(r"rank \d of \d: loss \d+\.\d{4}", output))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_two_replicas_train_as_two_processes(name: str) -> None:
    before = subprocess.run(
        [
            *(sys.executable, "-m", "shims", "--ranks", "2", "--backend", "cpu"),
            *START.get(name, []),
            "before.py",
        ],
        cwd=EXAMPLES / name,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert before.returncode == 0, before.stderr
    after = run_script(
        EXAMPLES / name / "after.py", side="xla", replicas=2, timeout=LIMIT, output="capture"
    )
    assert after.returncode == 0, after.output
    lines = losses(after.output)
    assert [line[:11] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
    assert lines == losses(before.stdout)
