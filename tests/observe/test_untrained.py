"""Optimizers that train nothing, and replicas that are missing, are findings of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from migrate.observe.untrained import OptimizerWatch, untrained
from tests.waiting import LIMIT

SCRIPT = """
import os
import torch
import torch_xla
from torch import nn


def train(G, D, o, critic):
    G.to("xla")
    for _ in range(3):
        with torch_xla.step():
            o.zero_grad()
            G(torch.ones(3, 4, device="xla")).square().mean().backward()
            o.step()


net = nn.Linear(4, 2)
MOVED
train(net, None, torch.optim.Adam(net.parameters()), None)  # made
"""


READS = "rank = int(os.environ.get('RANK', -1))"


def run(folder: Path, script: str, *options: str) -> tuple[int, dict[str, Any], str]:
    path = folder / "train.py"
    path.write_text(script)
    done = subprocess.run(
        [Path(sys.executable).with_name("migrate"), "run", path, "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        cwd=folder,
    )
    return done.returncode, json.loads(done.stdout)["report"], done.stderr


@pytest.mark.xla
def test_an_optimizer_that_was_made_before_the_move(tmp_path: Path) -> None:
    code, report, _ = run(tmp_path, SCRIPT.replace("MOVED", ""), "--replicas", "1")
    assert code == 1
    (found,) = report["untrained"]
    made = next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if "# made" in text)
    assert (found["name"], found["parameters"], found["steps"]) == ("Adam", 2, 3)
    assert (found["line"]["file"], found["line"]["line"]) == ("train.py", made)


@pytest.mark.xla
@pytest.mark.long
@pytest.mark.parametrize(
    ("reads", "options", "code", "says"),
    [
        ("", ["--replicas", "2"], 1, "1 of 2 replicas; the script starts no others"),
        ("", [], 0, "1 of 2 replicas; the script starts no others"),
        (READS, [], 1, "1 of 2 replicas; this script is started by torchrun: --torchrun"),
        (READS, ["--torchrun"], 0, ""),
    ],
)  # fmt: skip
def test_a_script_that_starts_one_process(
    reads: str, options: list[str], code: int, says: str, tmp_path: Path
) -> None:
    moved = SCRIPT.replace("MOVED", f'net.to("xla")\n{reads}')
    returncode, report, stderr = run(tmp_path, moved, *options)
    assert report["untrained"] == []
    assert returncode == code, stderr
    assert says in stderr
    assert ("of 2 replicas" in stderr) is bool(says)


def test_a_parameter_with_a_gradient_is_enough(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    optimizers = OptimizerWatch(lambda: 0)
    trained, idle = (
        torch.optim.SGD([torch.nn.Parameter(torch.ones(2)) for _ in range(2)], lr=0.1)
        for _ in range(2)
    )
    for step in range(3):
        if step == 2:
            trained.param_groups[0]["params"][1].grad = torch.ones(2)
        for optimizer in (trained, idle):
            optimizer.step()
            optimizers.stepped(optimizer)
    optimizers.write(tmp_path)
    (found,) = untrained(tmp_path)
    assert (found.name, found.parameters, found.steps, found.rank) == ("SGD", 2, 3, 0)
