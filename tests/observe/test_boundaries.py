"""Training steps that no sync ends are found by running, whatever else reads or reduces in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.observe.boundaries import MOST_STEPS
from migrate.prove.compare.verdict import ProofVerdict
from migrate.prove.proof import prove
from migrate.prove.settings import Settings
from tests.prove.test_prove import AFTER, BEFORE, edited
from tests.waiting import LIMIT

pytestmark = pytest.mark.xla

SCRIPT = """
import contextlib
import torch
import torch_xla

model = torch.nn.Linear(4, 2).to("xla")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = torch.nn.Parameter(torch.ones(2))
held.grad = torch.zeros(2)
on_the_host = torch.optim.SGD([held], lr=0.1)
for _ in range(4):
    with BLOCK:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4, device="xla")).square().mean()
            loss.backward()
            optimizer.step()  # step
            for _ in range(20):
                on_the_host.step()
            print(loss.item())
"""


def run(folder: Path, block: str, steps: int) -> tuple[int, list[dict[str, object]]]:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("BLOCK", block).replace("STEPS", str(steps)))
    done = subprocess.run(
        [Path(sys.executable).with_name("migrate"), "run", script, "--json", "--replicas", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    unended: list[dict[str, object]] = json.loads(done.stdout)["report"]["unended"]
    return done.returncode, unended


def test_a_loop_without_a_step_is_a_finding_with_its_line(tmp_path: Path) -> None:
    returncode, (unended,) = run(tmp_path, "contextlib.nullcontext()", 3)
    assert returncode == 1
    assert (unended["steps"], unended["ranks"]) == (12, [0])
    assert isinstance(unended["line"], dict)
    assert unended["line"]["text"] == "optimizer.step()  # step"


@pytest.mark.long
def test_a_few_steps_in_one_graph_are_meant(tmp_path: Path) -> None:
    assert run(tmp_path, "torch_xla.step()", MOST_STEPS) == (0, [])


@pytest.mark.long
def test_such_a_loop_is_not_proven_equal(tmp_path: Path) -> None:
    few = ("range(3)", "range(1)")
    before, after = tmp_path / "train.py", tmp_path / "train_xla.py"
    before.write_text(edited(BEFORE, few))
    after.write_text(edited(AFTER, few, ("with torch_xla.step():", "if True:")))
    proof = prove(before, after, replicas=2, settings=Settings(timeout=LIMIT))
    assert proof.verdict is ProofVerdict.UNENDED
    (line,) = [n for n, text in enumerate(after.read_text().splitlines(), 1) if ".step()" in text]
    assert f"the rewrite have no step boundary (train_xla.py:{line}): 16" in proof.message
