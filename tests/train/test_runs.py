"""Runs of a script under a plugin."""

from __future__ import annotations

import atexit
import os
import socket
from pathlib import Path

import pytest
import torch.distributed

from migrate.train.errors import TrainError
from migrate.train.find import find_training, script_text
from migrate.train.options import TrainOptions
from migrate.train.watch.runs import TORCHRUN, environment_kept, needs_torchrun, run_script

WROTE = "wrote.txt"


def write() -> None:
    """Plugin of the runs below: write what the script's folder has."""
    folder = Path(os.environ["MIGRATE_TRAIN_FOLDER"])
    own = Path(os.environ["MIGRATE_TRAIN_SCRIPT"]).parent
    (folder / WROTE).write_text(" ".join(sorted(p.name for p in own.iterdir())))
    (own / "snapshot.txt").touch()


def write_at_exit() -> None:
    """Plugin that writes at the end of the run whether it has a process group."""

    def write() -> None:
        is_joined = torch.distributed.is_initialized()
        (Path(os.environ["MIGRATE_TRAIN_FOLDER"]) / WROTE).write_text(str(is_joined))

    atexit.register(write)


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


def test_a_port_that_the_script_names_may_be_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # of the plugin
    script, work = tmp_path / "script" / "train.py", tmp_path / "work"
    script.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        method = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        script.write_text(
            "import torch.distributed as dist\n"
            f"dist.init_process_group('nccl', init_method={method!r}, rank=0, world_size=1)\n"
        )
        run_script(script, (), "tests.train.test_runs:write_at_exit", work, WROTE, 300)
    assert (work / WROTE).read_text() == "True"


@pytest.mark.parametrize(
    ("error", "is_torchrun"),
    [
        ("train.py:3: ended (KeyError: 'LOCAL_RANK')", True),
        ("(ValueError: env:// rendezvous: environment variable RANK expected, but not set)", True),
        ("(KeyError: 'lr')", False),
        ("(RuntimeError: RANK 3 failed)", False),
    ],
)
def test_what_torchrun_sets_is_known_by_the_error(error: str, *, is_torchrun: bool) -> None:
    assert needs_torchrun(error) is is_torchrun


@pytest.mark.parametrize(
    "group",
    [
        'torch.distributed.init_process_group("gloo")',
        'rank = int(os.environ["LOCAL_RANK"])',
    ],
)
def test_a_script_for_torchrun_runs_as_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "script" / "train.py"
    script.parent.mkdir()
    script.write_text(
        f"""\
import os

import torch
import torch.distributed

{group}
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    x = torch.ones(4, 2)
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    )
    (tmp_path / "work").mkdir()
    options = TrainOptions(script, tmp_path / "out")
    with environment_kept():
        _, updates = find_training(script_text(script), options, tmp_path / "work")
    assert len(updates) == 1
    assert not TORCHRUN.keys() & os.environ.keys()


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
