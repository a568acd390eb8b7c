"""Targets of a run: a missing package is one line before anything runs, and messages have their words."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from migrate.catalogue.target import TPU, XLA
from migrate.cli import commands
from migrate.prove.runtimes import RUNTIMES
from tests.waiting import LIMIT

NOTHING = "raise SystemExit('it ran')\n"
without_torch_tpu = pytest.mark.skipif(
    find_spec("torch_tpu") is not None, reason="torch_tpu is installed"
)


@without_torch_tpu
@pytest.mark.parametrize("command", [("run",), ("run", "--rewrite"), ("prove",)])
@pytest.mark.parametrize("configured", [False, True], ids=["option", "configured"])
def test_without_torch_tpu_one_line_says_how_to_install_it(
    command: tuple[str, ...], configured: bool, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(NOTHING)
    option = () if configured else ("--target", "torch_tpu")
    if configured:
        (tmp_path / "pyproject.toml").write_text('[tool.migrate]\ntarget = "torch_tpu"\n')
    done = CliRunner().invoke(commands, [command[0], str(script), *command[1:], *option])
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("migrate: torch_tpu is not installed; make install-torch-tpu ")


def test_a_page_of_a_run_on_torch_tpu_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NOTHING)
    command = ["run", str(script), "--target", "torch_tpu", "--html", str(tmp_path / "page.html")]
    done = CliRunner().invoke(commands, command)
    assert done.exit_code == 2
    assert "--html has no page for torch_tpu" in done.stderr


MESSAGE = "0 of 4 parameters have gradients: the optimizer was made before the model was moved to "


def test_messages_have_the_words_of_the_target() -> None:
    assert RUNTIMES[XLA].in_words(f"{MESSAGE}the XLA device") == f"{MESSAGE}the XLA device"
    assert RUNTIMES[TPU].in_words(f"{MESSAGE}the XLA device") == f"{MESSAGE}the TPU"
    seeds = "seed XLA in each replica, or by torch_xla.manual_seed(seed + xr.global_ordinal())"
    assert RUNTIMES[TPU].in_words(seeds) == (
        "seed the TPU in each replica, or by torch.manual_seed(seed + dist.get_rank())"
    )


def test_a_running_mean_that_stays_is_explained_for_torch_tpu_only() -> None:
    message = (
        "at the end, rank 0: bn.running_mean is 1 away from the original's (gate 0.001): it is a buffer, and "
        "in the rewrite nothing changes it after the first step (left in evaluation mode, or never updated?)"
    )
    assert RUNTIMES[XLA].in_words(message) == message
    assert "does not update the running statistics" in RUNTIMES[TPU].in_words(message)


@pytest.mark.parametrize("how", ["", "environment"])
def test_ranks_are_started_as_the_script_expects(how: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "open(sys.argv[1] + rank, 'w').write(os.environ['WORLD_SIZE'])\n"
    )
    command = ["-P", "-m", "shims._started", "2", how, str(script), str(tmp_path / "r")]
    subprocess.run(
        [sys.executable, *command], env={**os.environ, "RANK": "7"}, check=True, timeout=LIMIT
    )
    assert [(tmp_path / f"r{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
