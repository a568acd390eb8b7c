"""What the short run of `migrate assess` says about training steps, where it also evaluates and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from migrate.assess.facts import ObservedRun
from migrate.assess.run import STEPS, Ready, _enough, _observed_run
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import ExecutionCause
from migrate.observe.records import Execution, Interval, write_line
from migrate.observe.report import observed
from migrate.place import Place

TRAIN = DumpFrame("main", "/home/user/train.py", 19)
EVALUATE = DumpFrame("evaluate", "/home/user/train.py", 40)
SAVE = DumpFrame("main", "/home/user/train.py", 50)


def interval(number: int, line: DumpFrame, *reads: DumpFrame, compiles: int = 0) -> Interval:
    executions = tuple(Execution("graph", ExecutionCause.READ, read, False, ()) for read in reads)
    steps = int(line == TRAIN)
    return Interval(0, number, line, 0.1, 0.1, compiles, 0.1, 0, 0, steps, {}, executions)


def epochs(folder: Path, count: int) -> None:
    """Write a run: epochs of three training steps, two of an evaluation that is read, and a save.

    The first training step compiles; the evaluation and the save of each epoch do.
    """
    lines = []
    for epoch in range(count):
        for step in range(3):
            lines.append((TRAIN, (), int(epoch == step == 0)))
        lines += [(EVALUATE, (), 1), (EVALUATE, (), 0), (SAVE, (EVALUATE,), 1)]
    with (folder / "observed.0.jsonl").open("w") as file:
        for number, (line, reads, compiles) in enumerate(lines, 1):
            file.write(write_line(interval(number, line, *reads, compiles=compiles)))


@pytest.fixture
def ready(tmp_path: Path) -> Ready:
    return Ready(cast("Place", None), tmp_path / "train.py", str, ())


def run(folder: Path, ready: Ready) -> ObservedRun:
    return _observed_run(observed(folder), ready, 1, 1.0)


def test_steps_are_those_of_the_training_loop(tmp_path: Path, ready: Ready) -> None:
    epochs(tmp_path, 4)
    ran = run(tmp_path, ready)
    assert (ran.steps, ran.compiled, ran.late) == (12, 1, 0.0)
    assert not ran.dynamic


def test_a_value_that_the_evaluation_reads_is_no_wait_of_each_step(
    tmp_path: Path, ready: Ready
) -> None:
    epochs(tmp_path, 4)
    assert run(tmp_path, ready).reads == ()


@pytest.mark.parametrize(("count", "enough"), [(2, False), (3, False), (STEPS // 3, True)])
def test_the_run_ends_after_so_many_training_steps(
    tmp_path: Path, count: int, enough: bool
) -> None:
    epochs(tmp_path, count)
    assert _enough(tmp_path, 1) is enough


def test_where_no_optimizer_of_torch_steps_each_sync_is_a_step(
    tmp_path: Path, ready: Ready
) -> None:
    with (tmp_path / "observed.0.jsonl").open("w") as file:
        for number in range(1, STEPS + 1):
            file.write(write_line(interval(number, EVALUATE)))
    assert _enough(tmp_path, 1)
    assert run(tmp_path, ready).steps == STEPS


@pytest.mark.parametrize(
    ("files", "place", "said"),
    [
        (["a/train.py"], "train.py:12", "train.py:10"),
        (["a/train.py", "b/net.py"], "net.py:5", "net.py:3"),
        (["a/train.py", "b/train.py"], "train.py:12", "train.py"),
        (["a/train.py"], "functional.py:7", "functional.py:7"),
    ],
)
def test_places_in_graphs_are_the_lines_of_the_original(
    files: list[str], place: str, said: str
) -> None:
    def original(text: str) -> str:
        file, _, line = text.rpartition(":")
        return f"{file}:{int(line) - 2}"

    mirror: Any = None
    changed = tuple(Path("/mirror", file) for file in files)
    ready = Ready(mirror, changed[0], original, (), changed)
    assert ready.original_of_base(place) == said
