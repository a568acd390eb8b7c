"""How ranks are started, and what is said when one fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.frameworks import need_torch_xla
from tests.waiting import LIMIT

GROUPS = Path(__file__).parent / "programs" / "groups.py"
FILE = Path(__file__).parent / "programs" / "whole_file.py"
TRAIN = Path(__file__).parents[3] / "examples" / "portable" / "train.py"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.mark.parametrize("backend", ["cpu", pytest.param("xla", marks=pytest.mark.long)])
@pytest.mark.long_cases("cpu")
def test_groups_of_some_ranks(backend: str) -> None:
    if backend == "xla":
        need_torch_xla()
    done = run(str(GROUPS), MIGRATE_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert "all groups are right" in done.stdout


@pytest.mark.long
def test_the_rank_that_raised_is_named() -> None:
    done = run(str(GROUPS), "fail", MIGRATE_BACKEND="cpu")
    assert done.returncode == 1
    assert "ValueError: rank one gives up" in done.stderr
    assert 'raise ValueError("rank one gives up")' in done.stderr


@pytest.mark.long
def test_the_ranks_of_torchrun_are_taken(tmp_path: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    checkpoint = str(tmp_path / "last.pt")
    done = run(
        *torchrun, str(TRAIN), "--epochs", "1", "--checkpoint", checkpoint, MIGRATE_BACKEND="cpu"
    )
    assert done.returncode == 0, done.stderr
    assert len(torch.load(checkpoint)["history"][0]) == 2


@pytest.mark.parametrize(
    ("backend", "ranks"), [("cpu", 1), ("cpu", 2), pytest.param("xla", 2, marks=pytest.mark.long)]
)
@pytest.mark.long_cases("cpu-1")
def test_a_file_is_run_in_every_rank(backend: str, ranks: int, tmp_path: Path) -> None:
    if backend == "xla":
        need_torch_xla()
    environment = {"MIGRATE_BACKEND": backend, "MIGRATE_RANKS": str(ranks)}
    done = run(str(FILE), str(tmp_path), **environment)
    assert done.returncode == 0, done.stderr
    written = {"first.pt", "local.pt", *(f"rank{rank}.pt" for rank in range(ranks))}
    assert {path.name for path in tmp_path.iterdir()} == written
    assert torch.load(tmp_path / "rank0.pt")["total"].tolist() == [ranks, ranks]
