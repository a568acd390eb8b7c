from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from shims import activate
from shims._saved.termination import Termination
from shims.checkpoint import load
from shims.resume import PREEMPTED, Preempted, ResumeError, ResumeWarning, resume
from tests.waiting import LIMIT, until

PROGRAM = Path(__file__).parent / "programs" / "resumed_training.py"
STARTS = itertools.count()


def start(
    folder: Path, weights: Path, *, ranks: int = 1, kill: tuple[int, int] = (-1, -1)
) -> list[tuple[int, str]]:
    """Run the program on the CPU; each rank's exit code and output."""
    arguments = [str(PROGRAM), "cpu", str(folder), str(weights), *map(str, kill)]
    store = f"{folder}.store{next(STARTS)}"
    processes = [
        subprocess.Popen(
            [sys.executable, *arguments, *([str(rank), str(ranks), store] if ranks > 1 else [])],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for rank in range(ranks)
    ]
    outcomes = []
    for process in processes:
        output, _ = process.communicate(timeout=LIMIT)
        outcomes.append((process.returncode, output))
    return outcomes


def same(first: Path, second: Path) -> bool:
    def leaves(path: Path) -> list[Any]:
        state, *more = load(path)
        return [*state.values(), *(torch.as_tensor(value) for value in more)]

    return all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(leaves(first), leaves(second), strict=True)
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    ((code, output),) = start(folder / "a", folder / "a.pt")
    assert (code, output.splitlines()[-1]) == (0, "end at 24 72"), output
    return folder / "a.pt"


# In the first epoch, at the last step of the first, and in the second (8 steps with 1 rank).
@pytest.mark.parametrize(
    "kill_step",
    [pytest.param(2, marks=pytest.mark.long), 7, pytest.param(13, marks=pytest.mark.long)],
)
def test_a_preempted_run_ends_with_the_same_weights(
    kill_step: int, uninterrupted: Path, tmp_path: Path
) -> None:
    ((code, output),) = start(tmp_path / "b", tmp_path / "b.pt", kill=(0, kill_step))
    assert code == PREEMPTED, output
    assert not (tmp_path / "b.pt").exists()
    ((code, output),) = start(tmp_path / "b", tmp_path / "b.pt")
    assert code == 0, output
    assert output.splitlines()[0] == f"start at {kill_step + 1} {3 * kill_step + 3}"
    assert same(uninterrupted, tmp_path / "b.pt")
    # The newest two of every fourth step, the end, and nothing half-written.
    assert sorted(os.listdir(tmp_path / "b")) == ["step-000000024-end.pt", "step-000000024.pt"]


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    _, resumed = run_of(tmp_path)
    with resumed as run:
        assert [list(run.batches("ab")) for _ in run.epochs(2)] == [["a", "b"], ["a", "b"]]
    _, resumed = run_of(tmp_path)
    with resumed as run:
        assert run.step == 4
        assert list(run.epochs(2)) == []
    _, resumed = run_of(tmp_path)
    with resumed as run:
        assert [(epoch, list(run.batches("ab"))) for epoch in run.epochs(3)] == [(2, ["a", "b"])]


@pytest.mark.long
def test_a_shutdown_that_signals_loader_workers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADER_WORKERS", "1")
    ((code, output),) = start(tmp_path / "a", tmp_path / "a.pt")
    assert code == 0, output
    ((code, output),) = start(tmp_path / "b", tmp_path / "b.pt", kill=(0, 11))
    assert code == PREEMPTED, output
    ((code, output),) = start(tmp_path / "b", tmp_path / "b.pt")
    assert (code, output.splitlines()[0]) == (0, "start at 12 36"), output
    assert same(tmp_path / "a.pt", tmp_path / "b.pt")


@pytest.mark.long
def test_two_ranks_stop_at_one_step_though_one_was_signaled(tmp_path: Path) -> None:
    assert [code for code, _ in start(tmp_path / "a", tmp_path / "a.pt", ranks=2)] == [0, 0]
    outcomes = start(tmp_path / "b", tmp_path / "b.pt", ranks=2, kill=(1, 5))
    assert [code for code, _ in outcomes] == [PREEMPTED, PREEMPTED], outcomes
    outcomes = start(tmp_path / "b", tmp_path / "b.pt", ranks=2)
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    # One step more than the one under way: the ranks agree while it runs.
    assert all("start at 7 21" in output for _, output in outcomes)
    assert same(tmp_path / "a.pt", tmp_path / "b.pt")
    ((code, output),) = start(tmp_path / "b", tmp_path / "b.pt")
    assert code == 1
    assert "had 2 replicas, this start has 1" in output


@pytest.mark.long
def test_simulated_xla_replicas(tmp_path: Path) -> None:
    def launch(name: str, kill: tuple[int, int] = (-1, -1)) -> subprocess.CompletedProcess[str]:
        files = [str(tmp_path / name), str(tmp_path / f"{name}.pt")]
        simulated = activate.environment("simulate", 2)
        simulated["PYTHONPATH"] += os.pathsep + os.getcwd()
        return subprocess.run(
            [sys.executable, str(PROGRAM), "xla", *files, *map(str, kill)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **simulated},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    whole = launch("a")
    assert whole.returncode == 0, whole.stderr
    killed = launch("b", (1, 5))
    assert f"exited with status {PREEMPTED}" in killed.stderr, killed.stderr
    again = launch("b")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("start at 7 21") == 2
    (first, *_), (second, *_) = load(tmp_path / "a.pt"), load(tmp_path / "b.pt")
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-6, atol=1e-6)
    assert any(value.abs().max() > 1e-2 for value in first.values())


def run_of(folder: object, **options: Any) -> tuple[torch.nn.Linear, Any]:
    model = torch.nn.Linear(1, 1)
    return model, resume(str(folder), model=model, **options)


@pytest.mark.parametrize("where", ["{folder}", "memory://runs/{name}"])
def test_a_broken_checkpoint_is_passed_over(where: str, tmp_path: Path) -> None:
    from shims._saved import atomic

    folder = where.format(folder=tmp_path / "run", name=tmp_path.name)
    model, resumed = run_of(folder, every=1, keep=3)
    with resumed as run:
        for epoch in run.epochs(1):
            for number in run.batches(range(5)):
                with torch.no_grad():
                    model.bias.fill_(number)
                run.state["at"] = (epoch, number)
    assert atomic.names_in(folder) == [
        "step-000000004.pt",
        "step-000000005-end.pt",
        "step-000000005.pt",
    ]
    for name in ("step-000000005.pt", "step-000000005-end.pt", ".step-000000006.pt.0123abcd.tmp"):
        with atomic.atomic_write(f"{folder}/{name}") as file:
            file.write(b"PK\x03\x04 cut off")
    model, resumed = run_of(folder)
    with pytest.warns(ResumeWarning, match=r"step-000000005.*skipped"):
        run = resumed.__enter__()
    assert (run.step, run.state) == (4, {"at": (0, 3)})
    assert model.bias.item() == 3.0
    assert [list(run.batches(range(5))) for _ in run.epochs(1)] == [[4]]
    run.__exit__(None)
    assert not any(name.endswith(".tmp") for name in atomic.names_in(folder))
    for name in atomic.names_in(folder):
        with atomic.atomic_write(f"{folder}/{name}") as file:
            file.write(b"")
    with pytest.warns(ResumeWarning), pytest.raises(ResumeError, match="no checkpoint in"):
        run_of(folder)[1].__enter__()


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    for options in ({"every": 0}, {"keep": 0}, {"ema": 3}):
        with pytest.raises(ResumeError):
            run_of(tmp_path, **options)
    _, resumed = run_of(tmp_path, every=3)
    with resumed as run:
        with pytest.raises(ResumeError, match=r"outside run\.epochs"):
            next(run.batches([1]))
        for _ in run.epochs(1):
            assert list(run.batches([1, 2, 3])) == [1, 2, 3]
            with pytest.raises(ResumeError, match="twice in one epoch"):
                next(run.batches([1]))
            break
    _, resumed = run_of(tmp_path)
    with resumed as run:
        for _ in run.epochs(1):
            with pytest.raises(ResumeError, match="behind batch 3 of epoch 0, the loader has 1"):
                next(run.batches([1]))
            break
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ResumeError, match="holds model; resume was given model, optimizer"):
        resume(tmp_path, model=model, optimizer=optimizer).__enter__()
    with pytest.raises(ResumeError, match=r"the model in .* does not fit"):
        resume(tmp_path, model=torch.nn.Linear(2, 1)).__enter__()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_in_a_thread_that_is_not_the_main_one(tmp_path: Path) -> None:
    ends: list[object] = []

    def replica() -> None:
        try:
            _, resumed = run_of(tmp_path)
            with resumed as run:
                for _ in run.epochs(1):
                    for number in run.batches(range(9)):
                        if number == 4:
                            os.kill(os.getpid(), signal.SIGTERM)
                            until(Termination().asked, "the signal")
        except SystemExit as end:
            ends.append(end)

    thread = threading.Thread(target=replica)
    thread.start()
    thread.join()
    assert isinstance(ends[0], Preempted)
    assert ends[0].code == 75
    assert os.listdir(tmp_path) == ["step-000000005.pt"]


# JAX, which other tests have imported into this process by now, warns of every fork in it; the child
# here does not use it.
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
def test_a_terminated_child_is_no_preemption() -> None:
    seen: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    ready, told = os.pipe()
    try:
        with Termination() as outer, Termination() as inner:
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.write(told, b"x")
                signal.pause()
                os._exit(0)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
            assert not outer.asked()
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner.asked()
            assert outer.asked()
        os.kill(os.getpid(), signal.SIGTERM)  # the handler from before is back
        assert seen == [1]
    finally:
        signal.signal(signal.SIGTERM, previous)
