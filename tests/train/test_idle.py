"""Optimizers that a script builds, and steps long after the updates that are watched, or never."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from migrate.train.find import find_training, script_text
from migrate.train.notes import idle_notes
from migrate.train.options import TrainOptions
from migrate.train.record import recorded_run
from migrate.train.watch.optimizers import OptimizerRecorder

SCRIPT = """
import torch

data = torch.rand(2, 4, 3)
net, late = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
first = torch.optim.SGD(net.parameters(), lr=0.1)
second = torch.optim.SGD(late.parameters(), lr=0.1)
for step in range({steps}):
    batch = data[step % 2]
    loss = net(batch).square().mean()
    loss.backward()
    first.step()
    first.zero_grad()
    if step > 1000:
        second.step()
"""


def test_lines_of_optimizers_that_are_not_stepped() -> None:
    source = "first, second = (\n    SGD([weight]),\n    SGD([weight]),\n)\n"
    watch = OptimizerRecorder("train.py", None)
    weight = torch.nn.Parameter(torch.ones(2))

    def create(parameters: list[torch.nn.Parameter]) -> torch.optim.SGD:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        watch.built_optimizer(optimizer)
        return optimizer

    namespace = {"SGD": create, "weight": weight, "__name__": "__main__"}
    exec(compile(source, "train.py", "exec"), namespace)
    assert watch.idle_lines() == [2, 3]
    watch.stepped_optimizer(namespace["first"])
    assert watch.idle_lines() == [3]


@pytest.mark.long
@pytest.mark.parametrize(("steps", "idle"), [(2000, True), (4, False)])
def test_an_optimizer_that_is_not_stepped_is_named_with_its_line(
    tmp_path: Path, steps: int, idle: bool
) -> None:
    path, work = tmp_path / "script" / "train.py", tmp_path / "work"
    work.mkdir()
    path.parent.mkdir()
    path.write_text(SCRIPT.format(steps=steps))
    options = TrainOptions(path, tmp_path / "program", updates=2)
    script, [(calls, loss)] = find_training(script_text(path), options, work)
    recorded, _, _ = recorded_run(script, calls, loss, options, work, ports=False)
    assert [line.split(":")[1] for line in recorded["idle"]] == ["7"] * idle
    assert len(idle_notes(recorded)) == idle
