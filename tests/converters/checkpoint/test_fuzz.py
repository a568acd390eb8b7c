"""A few hundred of the damaged files of benchmarks/fuzz_checkpoints.py, of every format."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "fuzz_checkpoints.py"
FILES = 306  # 18 of each kind

# The same with something else in the place of what opens the files, to see it fail.
DRIVER = """
import os, sys
from pathlib import Path

import numpy as np

sys.path.insert(0, sys.argv[1])
import fuzz_checkpoints

undamaged = [0, 0]

def examine(folder, opened):
    if undamaged:
        undamaged.pop()
    else:
        {body}
    return "read"

fuzz_checkpoints.examine = examine
fuzz_checkpoints.seeds = lambda _: [fuzz_checkpoints.Seed("x", {{"x": b"12345678"}}, "x")] * 2
fuzz_checkpoints.run(2, 0, Path(sys.argv[2]), lambda _, outcome: print(outcome))
"""


def test_damaged_files_are_refused_in_one_line():
    command = [sys.executable, str(BENCHMARK), "--files", str(FILES)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{FILES} files" in run.stdout
    assert "0 failures, canary not made" in run.stdout
    (total,) = re.findall(r"^all +(.*)$", run.stdout, re.MULTILINE)
    counts = {kind: int(count) for kind, count in re.findall(r"(\w+) (\d+)", total)}
    assert sum(counts.values()) == FILES
    assert counts["CheckpointDamagedError"] > 100
    assert counts["CheckpointHoldsCodeError"] > 20
    assert counts["read"] > 10


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ('{}["x"]', "KeyError"),
        ('os.system("true")', "os.system"),
        ("os.kill(os.getpid(), 9)", "the process died (-9)"),
        ("np.ones(80 << 20)", "MB"),
        ("sys.exit()", "SystemExit"),
    ],
)
def test_the_check_above_can_fail(tmp_path, body, part):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(body=body))
    command = [sys.executable, str(script), str(BENCHMARK.parent), str(tmp_path / "canary")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Outcome(") == 2
    assert "what='failure'" in run.stdout
    assert part in run.stdout
