"""Replicas that execute other graphs than each other, from what they write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.observe.graph_dump import Frame
from migrate.observe.places import Cause
from migrate.observe.records import Execution, Interval, read_lines, write_line
from migrate.observe.report import observed
from tests.waiting import LIMIT

BLOCK = Frame("worker", "/home/user/train.py", 19)
READ = Frame("worker", "/home/user/train.py", 23)
NODE = "%0 = f32[{}]{{0}} xla::device_data(), location=worker@train.py:3, xla_shape=f32[8]{{0}}"


def step(rank: int, number: int, *executions: Execution) -> Interval:
    return Interval(
        rank=rank,
        number=number,
        line=BLOCK,
        seconds=0.25,
        compile_seconds=0.125,
        compiles=1,
        execute_seconds=0.0625,
        sent=3,
        received=4,
        optimizer_steps=1,
        fallbacks={"aten::nonzero": 2},
        executions=executions,
        memory=(1, 2),
    )


def sync(graph: str, size: int = 8) -> Execution:
    return Execution(graph, Cause.SYNC, BLOCK, True, (NODE.format(size),))


def written(folder: Path, *steps: Interval) -> Path:
    for one in steps:
        with (folder / f"observed.{one.rank}.jsonl").open("a") as file:
            file.write(write_line(one))
    return folder


def test_what_is_written_is_read_again_but_for_a_torn_line(tmp_path: Path) -> None:
    steps = [step(0, 1, sync("a")), step(1, 1)]
    written(tmp_path, *steps)
    with (tmp_path / "observed.1.jsonl").open("a") as file:
        file.write(write_line(step(1, 2))[:-9])
    assert read_lines(tmp_path) == steps


def test_equal_graphs(tmp_path: Path) -> None:
    written(tmp_path, *(step(rank, 1, sync("a")) for rank in (0, 1)))
    assert observed(tmp_path).divergences == ()


def test_another_graph_is_named_with_what_differs(tmp_path: Path) -> None:
    written(tmp_path, step(0, 1, sync("a")), step(1, 1, sync("a")))
    written(tmp_path, step(0, 2, sync("b")), step(1, 2, sync("c", 5)), step(0, 3), step(1, 3))
    (found,) = observed(tmp_path).divergences
    assert (found.step, found.ranks) == (2, (0, 1))
    assert [line.line for line in found.lines if line] == [19, 19]
    assert found.changes == ("the shape of an input: f32[8] → f32[5] (train.py:3)",)


def test_a_read_of_one_replica(tmp_path: Path) -> None:
    read = Execution("r", Cause.READ, READ, True)
    written(tmp_path, step(0, 1, sync("a"), read), step(1, 1, sync("a")))
    (found,) = observed(tmp_path).divergences
    first, other = found.lines
    assert first is not None
    assert (first.line, other, found.changes) == (23, None, ())


def test_a_constant_and_a_rendezvous_are_the_same_program(tmp_path: Path) -> None:
    # Another hash, equal nodes: torch_xla does not print the values of constants.
    for rank in (0, 1):
        meeting = Execution(f"m{rank}", Cause.RENDEZVOUS, BLOCK, True, (NODE.format(rank + 1),))
        written(tmp_path, step(rank, 1, sync(f"a{rank}"), meeting))
    assert observed(tmp_path).divergences == ()


def test_each_replica_against_the_first(tmp_path: Path) -> None:
    written(
        tmp_path,
        *(step(rank, 1, sync("a" if rank < 2 else "b", 8 if rank < 2 else 9)) for rank in range(4)),
    )
    assert [found.ranks for found in observed(tmp_path).divergences] == [(0, 2), (0, 3)]


SCRIPT = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend


def worker(index):
    dist.init_process_group("xla", init_method="xla://")
    for step in range(2):
        rows = 4 + step * dist.get_rank()
        with torch_xla.step():  # step
            mean = torch.ones(rows, 2, device="xla").mean()
            dist.all_reduce(mean)


if __name__ == "__main__":
    torch_xla.launch(worker)
"""


@pytest.mark.xla
@pytest.mark.long
def test_a_real_run_with_other_graphs_ends_with_exit_code_1(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    migrate = Path(sys.executable).with_name("migrate")
    command = [migrate, "run", script, "--json", "--replicas", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["report"]["divergences"]
    assert found, done.stdout
    assert found[0]["ranks"] == [0, 1]
    assert found[0]["step"] == 2
    assert all("train.py" in line["file"] for line in found[0]["lines"] if line)
