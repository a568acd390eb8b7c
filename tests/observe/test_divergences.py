"""Replicas that execute other graphs than each other, from what they write."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from migrate.observe.divergences import divergence_remedy
from migrate.observe.graph_dump import DumpFrame
from migrate.observe.graphs import INPUT_SHAPE
from migrate.observe.places import ExecutionCause
from migrate.observe.records import Execution, Interval, read_lines, write_line
from migrate.observe.report import observed
from tests.waiting import LIMIT

BLOCK = DumpFrame("worker", "/home/user/train.py", 19)
READ = DumpFrame("worker", "/home/user/train.py", 23)
SUM = "%1 = f32[] xla::cross_replica_sum(%0), scale=1, xla_shape=f32[]"
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
    return Execution(graph, ExecutionCause.SYNC, BLOCK, True, (NODE.format(size),))


def cut(graph: str, size: int = 8) -> Execution:
    """What the simulation cuts off at a collective."""
    return replace(sync(graph, size), cause=ExecutionCause.SIMULATION)


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


def test_a_line_that_a_killed_replica_left_between_others(tmp_path: Path) -> None:
    """The run is reported by what is whole: no JSONDecodeError takes the place of the replica's own error."""
    written(tmp_path, step(0, 1))
    with (tmp_path / "observed.0.jsonl").open("a") as file:
        file.write(write_line(step(0, 2))[:-9] + "\n")
    written(tmp_path, step(0, 3))
    assert read_lines(tmp_path) == [step(0, 1), step(0, 3)]


def test_a_run_that_was_stopped_from_outside(tmp_path: Path) -> None:
    """One replica was further: that is no difference, another graph before still is."""
    written(tmp_path, *(step(rank, 1, cut("g"), sync("a")) for rank in (0, 1)))
    written(tmp_path, step(0, 2, cut("g"), sync("a")))
    assert observed(tmp_path).divergences
    assert observed(tmp_path, stopped=True).divergences == ()
    written(tmp_path, step(1, 2, cut("h", 9), sync("b", 9)))
    assert observed(tmp_path, stopped=True).divergences


def test_equal_graphs(tmp_path: Path) -> None:
    written(tmp_path, *(step(rank, 1, cut("g"), sync("a")) for rank in (0, 1)))
    assert observed(tmp_path).divergences == ()


def test_inputs_that_other_lines_kept_are_the_same_program(tmp_path: Path) -> None:
    """A replica that alone computes something with a tensor has another line for it, as an input."""
    for rank, line in ((0, "location=train@train.py:22, "), (1, "")):
        node = f"%0 = f32[8]{{0}} xla::device_data(), {line}xla_shape=f32[8]{{0}}"
        parts = [replace(one, nodes=(node, SUM)) for one in (cut("g"), sync("a"))]
        written(tmp_path, step(rank, 1, *parts), step(rank, 2))
    assert observed(tmp_path).divergences == ()


@pytest.mark.parametrize("on_a_tpu", [False, True])
def test_another_graph_is_named_with_what_differs(on_a_tpu: bool, tmp_path: Path) -> None:
    first = [] if on_a_tpu else [cut("g")]
    end = (SUM,) if on_a_tpu else ()
    written(tmp_path, *(step(rank, 1, *first, sync("a")) for rank in (0, 1)))
    for rank, size in ((0, 8), (1, 5)):
        other = sync("b", size)
        ran = [*first, replace(other, nodes=(*other.nodes, *end))]
        written(tmp_path, step(rank, 2, *ran), step(rank, 3))
    (found,) = observed(tmp_path).divergences
    assert (found.step, found.ranks) == (2, (0, 1))
    assert [line.line for line in found.lines if line] == [19, 19]
    assert found.changes == ("the shape of an input: f32[8] → f32[5] (train.py:3)",)


LOCAL = Execution("r", ExecutionCause.READ, READ, True, (NODE.format(3),))


def test_a_read_of_one_replica_before_a_collective(tmp_path: Path) -> None:
    """What rank 0 has read is computed in the other replica's next program, with the collective."""
    written(tmp_path, step(0, 1, cut("g"), sync("a")), step(1, 1, cut("g"), sync("a")))
    written(tmp_path, step(0, 2, LOCAL, cut("g"), sync("a")), step(1, 2, cut("h", 4), sync("a")))
    (found,) = observed(tmp_path).divergences
    first, other = found.lines
    assert first is not None
    assert other is not None
    assert (found.step, first.line, other.line, found.changes) == (2, 23, 19, ())


def test_a_read_of_one_replica_that_no_collective_follows(tmp_path: Path) -> None:
    written(tmp_path, step(0, 1, cut("g"), sync("a"), LOCAL), step(1, 1, cut("g"), sync("a")))
    written(tmp_path, step(0, 2, sync("b")), step(1, 2, sync("c", 9)))
    assert observed(tmp_path).divergences == ()


def test_what_one_replica_computes_by_itself_keeps_nobody_waiting(tmp_path: Path) -> None:
    for rank, own in ((0, (LOCAL, LOCAL)), (1, ())):
        written(tmp_path, step(rank, 1, cut("g"), sync("a"), *own))
        written(tmp_path, step(rank, 2, cut("g"), sync("a")))
    report = observed(tmp_path)
    assert report.divergences == ()
    (found,) = report.alone
    assert [line and line.line for line in found.lines] == [23, None]


def test_shards_of_unequal_length_are_compiled_and_keep_nobody_waiting(tmp_path: Path) -> None:
    for rank, size in ((0, 2), (1, 1)):
        batches = (sync("full", 4), sync(f"last{rank}", size))
        written(tmp_path, step(rank, 1, cut("g"), sync("a")), step(rank, 2, *batches))
        written(tmp_path, step(rank, 3, cut("g"), sync("a")))
    report = observed(tmp_path)
    assert report.divergences == ()
    (found,) = report.alone
    assert found.changes == ("the shape of an input: f32[2] → f32[1] (train.py:3)",)
    assert found.step == 3


@pytest.mark.parametrize(
    ("end", "pending"),
    [(ExecutionCause.SYNC, False), (ExecutionCause.READ, True), (ExecutionCause.COMPILED, True)],
)
def test_after_a_read_alone_a_collective_may_be_pending(
    end: ExecutionCause, pending: bool, tmp_path: Path
) -> None:
    """A read runs what its value needs: on a TPU the collective before it may go into the next graph."""
    last = replace(sync("a"), cause=end, line=READ)
    for rank, own in ((0, (LOCAL,)), (1, ())):
        written(tmp_path, step(rank, 1, cut("g"), last, *own, sync("b")))
        written(tmp_path, step(rank, 2, cut("g"), sync("a")))
    (found,) = observed(tmp_path).alone
    assert found.pending is pending


def test_after_a_sync_no_collective_is_pending(tmp_path: Path) -> None:
    last = replace(sync("a"), cause=ExecutionCause.READ, line=READ)
    for rank, own in ((0, (LOCAL,)), (1, ())):
        written(tmp_path, step(rank, 1, cut("g"), last, sync("b"), *own))
        written(tmp_path, step(rank, 2, cut("g"), sync("a")))
    (found,) = observed(tmp_path).alone
    assert not found.pending


def test_another_collective_after_unequal_shards_is_a_divergence(tmp_path: Path) -> None:
    for rank, size in ((0, 2), (1, 1)):
        written(
            tmp_path, step(rank, 1, sync(f"last{rank}", size), cut(f"g{rank}", size), sync("a"))
        )
    report = observed(tmp_path)
    assert len(report.divergences) == 1
    assert report.alone == ()


def test_a_read_beside_a_sync_of_the_same_graph_with_a_collective(tmp_path: Path) -> None:
    for rank, cause, frame in ((0, ExecutionCause.READ, READ), (1, ExecutionCause.SYNC, BLOCK)):
        one = replace(sync("a"), cause=cause, line=frame)
        written(tmp_path, step(rank, 1, cut("g"), one), step(rank, 2, cut("h"), sync("b")))
    (found,) = observed(tmp_path).divergences
    assert [line.line for line in found.lines if line] == [23, 19]
    assert found.changes == ("the same graph, which one replica reads and the other synchronizes",)


def test_a_read_beside_a_sync_of_the_same_graph_without_one(tmp_path: Path) -> None:
    for rank, cause, frame in ((0, ExecutionCause.READ, READ), (1, ExecutionCause.SYNC, BLOCK)):
        one = replace(sync("a"), cause=cause, line=frame)
        written(tmp_path, step(rank, 1, one), step(rank, 2, cut("h"), sync("b")))
    report = observed(tmp_path)
    assert report.divergences == report.alone == ()


def test_a_replica_that_runs_nothing_more(tmp_path: Path) -> None:
    written(tmp_path, *(step(0, number, cut("g"), sync("a")) for number in (1, 2)))
    written(tmp_path, step(1, 1, cut("g"), sync("a")))
    (found,) = observed(tmp_path).divergences
    assert found.step == 2
    assert found.lines[1] is None


def test_a_constant_and_a_rendezvous_are_the_same_program(tmp_path: Path) -> None:
    # Another hash, equal nodes: torch_xla does not print the values of constants.
    for rank in (0, 1):
        meeting = Execution(
            f"m{rank}", ExecutionCause.RENDEZVOUS, BLOCK, True, (NODE.format(rank + 1),)
        )
        written(tmp_path, step(rank, 1, meeting, cut("g"), sync(f"a{rank}")))
    assert observed(tmp_path).divergences == ()


@pytest.mark.parametrize(
    ("changes", "is_number"),
    [
        (["1 more: inputs (train.py:3)"], True),
        (["1 more: inputs (train.py:3)", "1 fewer: prim::Constant"], True),
        (["1 more: inputs (train.py:3)", "1 more: aten::mul"], False),
        (["1 more: aten::mul"], False),
    ],
)
def test_a_number_of_one_replica_is_to_be_made_a_tensor(
    changes: list[str], is_number: bool
) -> None:
    """`x + rank`: 0 and 1 are constants of the graph, other numbers are inputs."""
    assert ("XLA307" in divergence_remedy(changes)) is is_number


def test_each_replica_against_the_first(tmp_path: Path) -> None:
    written(
        tmp_path,
        *(
            step(rank, 1, cut("g"), sync("a" if rank < 2 else "b", 8 if rank < 2 else 9))
            for rank in range(4)
        ),
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


UNEQUAL_SHARDS = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend


def worker(index):
    dist.init_process_group("xla", init_method="xla://")
    rank = dist.get_rank()
    rows = torch.arange(18.0).view(9, 2)[rank::2]  # 5 and 4
    for epoch in range(2):
        total = torch.zeros(1, device="xla")
        for part in rows.split(3):
            with torch_xla.step():
                total += part.to("xla").sum()
        with torch_xla.step():
            total = 2 * total
            dist.all_reduce(total)
        assert total.item() == 306


if __name__ == "__main__":
    torch_xla.launch(worker)
"""


@pytest.mark.xla
@pytest.mark.long
def test_a_real_run_with_unequal_shards_is_fine(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNEQUAL_SHARDS)
    migrate = Path(sys.executable).with_name("migrate")
    command = [migrate, "run", script, "--json", "--replicas", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["report"]
    assert report["divergences"] == []
    assert report["alone"][0]["ranks"] == [0, 1]


PRINTS_ITS_ACCURACY = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend
from torch import nn


def worker(index):
    dist.init_process_group("xla", init_method="xla://")
    torch.manual_seed(0)
    model = nn.Linear(8, 4).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        with torch_xla.step():
            out = model(torch.randn(16, 8).to("xla"))
            nn.functional.cross_entropy(out, torch.arange(16).to("xla") % 4).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
        top = (out.argmax(1) == 2).float().mean()
        if dist.get_rank() == 0:
            print(top.item())  # read


if __name__ == "__main__":
    torch_xla.launch(worker)
"""


@pytest.mark.xla
@pytest.mark.long
def test_a_value_that_one_replica_reads_after_its_step_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The step has ended, and what one replica computes from its result holds no collective."""
    script = tmp_path / "train.py"
    script.write_text(PRINTS_ITS_ACCURACY)
    for command in ("run", "prove"):
        arguments = [script, "--rewritten", script] if command == "prove" else [script]
        migrate = [Path(sys.executable).with_name("migrate"), command, *arguments]
        if command == "prove":
            # Its original is that of CUDA.
            original = tmp_path / "before.py"
            original.write_text(cuda(PRINTS_ITS_ACCURACY))
            migrate[2] = original
        done = subprocess.run(
            [*migrate, "--json", "--replicas", "2"],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        if command == "run":
            assert found["report"]["divergences"] == []
            assert found["report"]["alone"]
        else:
            assert found["verdict"] == "match"
            assert any("without collectives" in note for note in found["notes"])


def cuda(text: str) -> str:
    """The script before it was rewritten."""
    for old, new in (
        ("import torch_xla\nimport torch_xla.distributed.xla_backend\n", ""),
        ('"xla", init_method="xla://"', '"nccl"'),
        ("with torch_xla.step():", "if True:"),
        ('"xla"', '"cuda"'),
        ("torch_xla.launch(worker)", "worker(0)"),
        ("def worker(index):", "def worker(index):  # for torchrun"),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


SHARES_WHAT_ONE_DRAWS = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend


def worker(index):
    dist.init_process_group("xla", init_method="xla://")
    rank = dist.get_rank()
    if rank == 0:
        which = torch.randint(0, 5, (2,), device="xla")
    else:
        which = torch.empty(2, dtype=torch.long, device="xla")
    {between}
    dist.broadcast(which, src=0)
    torch_xla.sync()
    print(rank, which.tolist())


if __name__ == "__main__":
    torch_xla.launch(worker)
"""


@pytest.mark.xla
@pytest.mark.long
@pytest.mark.parametrize("between", ["pass", "torch_xla.sync()"])
def test_what_one_replica_draws_is_apart_from_the_broadcast_after_a_sync(
    between: str, tmp_path: Path
) -> None:
    """The hang of which XLA314 speaks, and what `migrate rewrite` writes against it."""
    script = tmp_path / "share.py"
    script.write_text(SHARES_WHAT_ONE_DRAWS.replace("{between}", between))
    migrate = Path(sys.executable).with_name("migrate")
    done = subprocess.run(
        [migrate, "run", script, "--json", "--replicas", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    report = json.loads(done.stdout)["report"]
    assert bool(report["divergences"]) is (between == "pass")
    assert (done.returncode == 0) is (between != "pass")


@pytest.mark.parametrize(
    ("shapes", "reordered"),
    [
        ((("f32[2,4]", "f32[3,4]"), ("f32[3,4]", "f32[2,4]")), True),
        ((("f32[2,4]", "f32[3,4]"), ("f32[5,4]", "f32[6,4]")), False),
        ((("f32[2,4]", "f32[3,4]"),), False),
        ((), False),
    ],
)
def test_the_same_inputs_in_another_order_are_a_position_by_the_index(
    shapes: tuple[tuple[str, str], ...], reordered: bool
) -> None:
    changes = [f"{INPUT_SHAPE}: {here} → {there} (train.py:7)" for here, there in shapes]
    assert ("XLA307" in divergence_remedy(changes)) is reordered


def test_an_operator_of_the_backward_pass_gets_no_line_of_another_read(tmp_path: Path) -> None:
    """The backward pass has no lines, so that a read with a line may be of something else."""
    backward = Execution("b" * 32, ExecutionCause.READ, None, True, ())
    read = Execution("c" * 32, ExecutionCause.READ, READ, True, ())
    both = replace(step(0, 1, backward, read), fallbacks={"aten::glu_backward": 1})
    [fallback] = observed(written(tmp_path, both)).fallbacks
    assert fallback.lines == ()


def test_an_operator_whose_reads_all_have_lines_gets_them(tmp_path: Path) -> None:
    read = Execution("c" * 32, ExecutionCause.READ, READ, True, ())
    [fallback] = observed(written(tmp_path, step(0, 1, read))).fallbacks
    assert [line.line for line in fallback.lines] == [READ.line]
