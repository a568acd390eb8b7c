"""How far a run has come is told while it runs."""

from __future__ import annotations

import threading
from pathlib import Path

from migrate.prove.progress import ObservedSteps, recorded_steps, steps_told
from tests.waiting import LIMIT


def test_each_further_step_is_reported() -> None:
    reported: list[int] = []
    reached = threading.Event()

    def report(steps: int) -> None:
        reported.append(steps)
        reached.set()

    steps = [0]
    with steps_told(report, lambda: steps[0], seconds=0.01):
        steps[0] = 3
        assert reached.wait(LIMIT)
        reached.clear()
        steps[0] = 4
        assert reached.wait(LIMIT)
    assert reported == [3, 4]


def test_the_rank_that_has_come_farthest_counts(tmp_path: Path) -> None:
    assert recorded_steps(tmp_path) == 0
    (tmp_path / "rank0.pid1.jsonl").write_text("{}\n{}\n{}\n")
    (tmp_path / "rank1.pid2.jsonl").write_text("{}\n{}\n{}\n{}\n{}")
    assert recorded_steps(tmp_path) == 3


def test_what_is_written_of_steps_is_read_once_and_whole(tmp_path: Path) -> None:
    seen = ObservedSteps(tmp_path)
    assert seen() == 0
    file = tmp_path / "observed.7.jsonl"
    file.write_text('{"optimizer_steps": 1}\n{"optimizer_steps": 2}\n{"optimizer')
    assert seen() == 3
    with file.open("a") as more:
        more.write('_steps": 4}\n')
    assert seen() == 7
    assert seen() == 7
