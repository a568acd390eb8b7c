"""How often a line reads a value, for each step of its loop, and what is no read at all."""

from __future__ import annotations

from pathlib import Path

from migrate.observe.graph_dump import DumpFrame
from migrate.observe.places import ExecutionCause
from migrate.observe.records import Execution, Interval, write_line
from migrate.observe.report import ObservedRead, observed

TRAIN = DumpFrame("main", "/home/user/train.py", 19)
EVALUATE = DumpFrame("evaluate", "/home/user/train.py", 40)
LOSS = DumpFrame("main", "/home/user/train.py", 25)
SCORE = DumpFrame("evaluate", "/home/user/train.py", 44)
WRAP = DumpFrame("main", "/home/user/train.py", 12)


def interval(rank: int, number: int, line: DumpFrame | None, *executions: Execution) -> Interval:
    optimizer_steps = int(line == TRAIN)
    return Interval(rank, number, line, 0.1, 0.0, 0, 0.1, 0, 0, optimizer_steps, {}, executions)


def execution(cause: ExecutionCause, line: DumpFrame) -> Execution:
    return Execution("graph", cause, line, False, ())


def report(folder: Path, ranks: int) -> dict[int, ObservedRead]:
    """Return the reads of a run by line: 6 steps, of which each is read, and evaluation after every third."""
    for rank in range(ranks):
        number = 0
        before = [
            execution(ExecutionCause.WRAPPING, WRAP),
            execution(ExecutionCause.RENDEZVOUS, DumpFrame("main", "/home/user/train.py", 60)),
        ]
        with (folder / f"observed.{rank}.jsonl").open("w") as file:
            for turn in range(6):
                file.write(write_line(interval(rank, number, TRAIN, *before)))
                before, number = [execution(ExecutionCause.READ, LOSS)], number + 1
                for _ in range(4) if turn % 3 == 2 else ():
                    file.write(write_line(interval(rank, number, EVALUATE, *before)))
                    before, number = [execution(ExecutionCause.READ, SCORE)], number + 1
            file.write(write_line(interval(rank, number, None, *before)))
    return {read.line.line: read for read in observed(folder).reads if read.line is not None}


def test_a_read_of_every_step_is_one_a_step_whatever_other_loops_run(tmp_path: Path) -> None:
    for ranks in (1, 2):
        reads = report(tmp_path, ranks)
        assert reads[LOSS.line].count == 6 * ranks
        assert reads[LOSS.line].per_step == 1.0
        assert reads[SCORE.line].count == 8 * ranks
        assert reads[SCORE.line].per_step == 1.0


def test_a_rendezvous_and_the_wrapping_of_a_model_are_no_reads(tmp_path: Path) -> None:
    assert set(report(tmp_path, 2)) == {LOSS.line, SCORE.line}


def test_a_read_of_an_evaluation_is_none_of_training(tmp_path: Path) -> None:
    reads = report(tmp_path, 2)
    assert reads[LOSS.line].trains
    assert not reads[SCORE.line].trains
