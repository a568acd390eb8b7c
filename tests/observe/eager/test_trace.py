"""Events of torch_tpu 0.2.0 as compilations with their lines, and the report made of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import migrate
from migrate.observe.eager.records import Compilation, EagerRecord, Failure, read, write
from migrate.observe.eager.report import EagerReport, reported
from migrate.observe.eager.trace import compilation
from migrate.observe.graph_dump import DumpFrame
from migrate.report.text.run_eager import eager_as_json

LINEAR = """# Graph: 1 ops, 3 inputs, reason: debug_mode
%0: f32[8, 4] = input
%1: f32[6, 4] = input
%2: f32[6] = input
%3: f32[8, 6] = linear(%0, %1, %2)    # {place} in <module>
return %3
"""
BACKWARD = """# Graph: 2 ops, 2 inputs, reason: debug_mode
%0: f32[] = input
%1: i64[] = input
%2: f32[8, 6] = as_strided(%0)
%3: f32[8, 6] = div.out(%2, %1)
return %3
"""
STEP = DumpFrame("main", "/home/me/train.py", 14)


def event(graph: str, *, hit: bool = False) -> dict[str, object]:
    return {
        "name": "torchtpu_eager/some.out",
        "cache_hit": hit,
        "compile_failed": False,
        "aten_graph": graph,
        "dur_us": 2000,
    }


def of(graph: str, *, hit: bool = False) -> Compilation | None:
    return compilation(event(graph, hit=hit), 3, STEP)


def test_an_operator_has_its_shapes_and_the_users_line() -> None:
    line = DumpFrame("<module>", "/home/me/train.py", 12)
    assert of(LINEAR.format(place="/home/me/train.py:12")) == Compilation(
        "linear", "f32[8, 4], f32[6, 4], f32[6]", line, backward=False, step=3, seconds=0.002
    )


def test_an_operator_without_a_line_belongs_to_the_backward_pass() -> None:
    assert of(BACKWARD) == Compilation(
        "div", "f32[], i64[]", STEP, backward=True, step=3, seconds=0.002
    )


def test_known_kernels_and_those_of_this_program_are_left_out() -> None:
    assert of(LINEAR.format(place="/home/me/train.py:12"), hit=True) is None
    assert of(LINEAR.format(place=f"{migrate.__file__}:12")) is None


def compiled(op: str, shapes: str, step: int, line: int = 12) -> Compilation:
    return Compilation(op, shapes, DumpFrame("main", "/home/me/train.py", line), False, step, 0.5)


def report(folder: Path, *records: EagerRecord) -> EagerReport:
    for number, record in enumerate(records):
        write(folder, record)
        # As by another process.
        (folder / f"eager.{os.getpid()}.json").rename(folder / f"eager.r{number}.json")
    return reported(folder)


def trained(rank: int, *compilations: Compilation) -> EagerRecord:
    return EagerRecord(
        rank=rank,
        steps=4,
        seconds=[0.1, 0.3, 0.2],
        first_loss=2.0,
        last_loss=1.0,
        parameters=4,
        changed=4,
        compilations=list(compilations),
        operators=100,
    )


def test_only_a_shape_that_was_not_there_before_is_a_changed_shape(tmp_path: Path) -> None:
    first = compiled("linear", "f32[16, 10], f32[32, 10]", 0)
    # Another kernel of known shapes: torch_tpu joins operators as they come.
    later = compiled("linear, relu", "f32[16, 10], f32[32, 10]", 1)
    # A part of the script that runs for the first time.
    evaluation = compiled("sum", "f32[3, 3, 3]", 1, 20)
    short = (compiled("linear", "f32[4, 10], f32[32, 10]", 3), compiled("relu", "f32[4, 32]", 3))
    seen = report(tmp_path, *(trained(rank, first, later, evaluation, *short) for rank in (0, 1)))
    (change,) = seen.new_shapes
    assert change.line is not None
    assert (change.step, change.line.line, change.kernels, change.ranks) == (3, 12, 2, (0, 1))
    assert change.shape == "f32[16, 10] → f32[4, 10]"
    assert [(line.line and line.line.line, line.kernels) for line in seen.compiled] == [
        (12, 4),
        (20, 1),
    ]
    (rank, _) = seen.ranks
    assert (rank.warm_up, rank.steady_seconds, rank.compile_seconds) == (3, 0.2, 2.5)
    assert not seen.has_findings
    assert json.dumps(eager_as_json(seen))


def test_steps_that_change_nothing_and_errors_are_findings(tmp_path: Path) -> None:
    still = trained(0)
    still.changed = 0
    failed = trained(1)
    failed.failure = Failure("RuntimeError: no", STEP, "aten::linalg_cholesky_ex.L")
    seen = report(tmp_path, still, failed)
    assert [rank.rank for rank in seen.unchanged] == [0]
    assert seen.ranks[1].not_implemented == "aten::linalg_cholesky_ex.L"
    assert str(seen.ranks[1].error_line).endswith("train.py:14")
    assert seen.has_findings
    assert [record.failure for record in read(tmp_path)] == [None, failed.failure]


def test_a_run_without_the_device_is_a_finding(tmp_path: Path) -> None:
    idle = trained(0)
    idle.operators = 0
    assert report(tmp_path, idle).has_findings
