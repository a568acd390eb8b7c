"""Where torch is not installed the commands that need it say so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from converters.installing import missing_error

CALL = """
import sys

sys.modules["torch"] = sys.modules["torch_xla"] = None
sys.argv = ["migrate", *sys.argv[1:]]
from migrate.cli import main

main()
"""


@pytest.mark.parametrize("more", [[], ["--from-checkpoint", "last.pt"]])
def test_prove_names_what_is_missing(tmp_path: Path, more: list[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nprint(torch.ones(2))\n")
    done = subprocess.run(
        [sys.executable, "-c", CALL, "prove", *more, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"migrate: {missing_error('torch').what}; pip install")
