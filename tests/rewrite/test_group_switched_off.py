"""A call that switches the process group off makes no replica of its script."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder

UTILS = """\
import os

import torch
import torch.distributed as dist


def base_setup(seed=0, *, distributed=True):
    {setup}
    torch.manual_seed(seed)


def _join():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")


def quiet_setup():
    base_setup(distributed=False)
"""
SUBMIT = """\
import shlex
import subprocess

from utils import base_setup, quiet_setup

template = "#!/bin/bash\\nsrun --gpus-per-node=8 {{cmd}}\\n"


def main(name):
    open("job.sh", "w").write(template.format(cmd=name))
    subprocess.run(shlex.split(f"sbatch {{name}}"), check=True)


if __name__ == "__main__":
    {call}
    main("job.sh")
"""
WAYS = ("if distributed:\n        _join()", "if not distributed:\n        return\n    _join()")


def rewritten(folder: Path, setup: str, call: str) -> tuple[str, list[str]]:
    """Return the rewritten script that submits, and the rules that report something in it."""
    (folder / "utils.py").write_text(UTILS.format(setup=setup))
    (folder / "submit.py").write_text(SUBMIT.format(call=call))
    done = rewrite_folder(folder, processes=1)
    assert not done.problems
    file = next(one for one in done.files if one.name.name == "submit.py")
    return file.after.decode(), [note.rule for note in file.findings]


@pytest.mark.parametrize("setup", WAYS)
@pytest.mark.parametrize("call", ["base_setup(distributed=False)", "quiet_setup()"])
def test_a_script_that_switches_the_group_off_gets_no_launch(
    tmp_path: Path, setup: str, call: str
) -> None:
    code, found = rewritten(tmp_path, setup, call)
    assert "launch(" not in code
    assert "process-launchers" in found


@pytest.mark.parametrize("setup", WAYS)
@pytest.mark.parametrize("call", ["base_setup()", "base_setup(distributed=True)"])
def test_a_script_that_joins_gets_one(tmp_path: Path, setup: str, call: str) -> None:
    code, _ = rewritten(tmp_path, setup, call)
    assert "torch_xla.launch(_mp_fn)" in code
