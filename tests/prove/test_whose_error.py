"""A script that fails: `run --rewrite` and `prove` say whether the error is its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands
from migrate.prove.failure import whose
from tests.waiting import LIMIT

SCRIPT = """
import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


def make_loader(dataset, **kwargs):
    return DataLoader(dataset, batch_size=4, **kwargs)


def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make_loader(TensorDataset(torch.randn(8, 3), torch.arange(8) % 2), {options})
    for inputs, labels in loader:
        inputs, labels = inputs.cuda(), labels.cuda()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    {end}


if __name__ == "__main__":
    main()
"""
# What fails wherever it runs, with what is said of it.
OWN = {
    "num_workers=0, persistent_workers=True": "ValueError: persistent_workers",
    "num_workers=0, prefetch_factor=2": "ValueError: prefetch_factor",
    "pin_memory=True, pin_memory_devices='cuda'": "TypeError: ",
}
OURS = 'if "torch_xla" in sys.modules: raise ValueError("not on XLA")'


def written(folder: Path, options: str = "", end: str = "") -> Path:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("{options}", options).replace("{end}", end))
    return script


FAILS_TOO = "the original fails on the CPU too"


def invoke(*args: object) -> Result:
    return CliRunner().invoke(commands, [str(arg) for arg in args])


@pytest.mark.parametrize(
    "options",
    [pytest.param(one, marks=() if "prefetch" in one else pytest.mark.long) for one in OWN],
)
def test_an_error_of_the_script_is_said_to_be_its_own(options: str, tmp_path: Path) -> None:
    said = whose(written(tmp_path, options), (), 1, LIMIT)
    assert said.startswith(f"{FAILS_TOO} ({OWN[options]}")
    assert "it is the script's own" in said


@pytest.mark.long
def test_run_says_that_the_original_fails_too(tmp_path: Path) -> None:
    script = written(tmp_path, next(iter(OWN)))
    done = invoke("run", script, "--rewrite", "--replicas", 1, "--no-report")
    assert done.exit_code == 1
    assert f"{FAILS_TOO} (ValueError: persistent_workers" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    done = invoke("prove", script, "--replicas", 1)
    assert done.exit_code == 2
    assert (
        "fails on the CPU as it is, without the rewrite: ValueError: persistent_workers"
        in done.stderr
    )


@pytest.mark.long
def test_run_says_that_the_original_does_not_fail(tmp_path: Path) -> None:
    script = written(tmp_path, end=OURS)
    migrate = Path(sys.executable).with_name("migrate")
    command = [migrate, "run", script, "--rewrite", "--replicas", "1", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert found["returncode"] == 1
    assert found["original"].startswith("the original runs to its end on the CPU: the error comes")
    done = invoke("prove", script, "--replicas", 1)
    assert done.exit_code == 2
    assert "failed on XLA where the original runs: ValueError: not on XLA" in done.stderr


def test_an_original_that_goes_on_is_beyond_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("migrate.prove.failure._AT_LEAST_SECONDS", 0.1)
    said = whose(written(tmp_path), (), 1, 0.0)
    assert said.startswith("the original was still running on the CPU after 0 s: the error comes")


@pytest.mark.long
def test_what_nothing_answers_for_on_the_cpu_is_not_found_out(tmp_path: Path) -> None:
    script = written(tmp_path, end="torch.cuda.CUDAPluggableAllocator('alloc.so', 'a', 'b')")
    said = whose(script, (), 1, LIMIT)
    assert said.startswith("whose error it is was not found out: the original ")
