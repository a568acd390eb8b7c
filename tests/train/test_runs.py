"""Runs of a script under a plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from migrate.train.errors import TrainError
from migrate.train.watch.runs import run_script

WROTE = "wrote.txt"


def write() -> None:
    """Plugin of the runs below: write what the script's folder has."""
    folder = Path(os.environ["MIGRATE_TRAIN_FOLDER"])
    own = Path(os.environ["MIGRATE_TRAIN_SCRIPT"]).parent
    (folder / WROTE).write_text(" ".join(sorted(p.name for p in own.iterdir())))
    (own / "snapshot.txt").touch()


def test_a_second_run_finds_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # of the plugin
    script, work = tmp_path / "script" / "train.py", tmp_path / "work"
    script.parent.mkdir()
    script.write_text("import torch\n")
    for _ in range(2):
        run_script(script, (), "tests.train.test_runs:write", work, WROTE, 300)
        assert (work / WROTE).read_text() == "train.py"


def test_a_progress_bar_does_not_hide_the_error(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    lines = (
        "import atexit, sys",
        "atexit.register(lambda: sys.stderr.write('0%|     | 0/9 [00:01<?, ?it/s]'))",
        "raise KeyError('halted')",
    )
    script.write_text("\n".join(lines))
    with pytest.raises(TrainError, match=r"train.py:3: ended .*KeyError: 'halted'"):
        run_script(script, (), "tests.train.test_runs:write", tmp_path / "work", WROTE, 300)
