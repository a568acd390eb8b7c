"""Start scripts run here for real: preempted in the middle, started again, the same losses to the digit."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.launch.host.training import PREEMPTED, STOPPED
from tests.launch.jobs import LAUNCHERS, ONE_HOST, written
from tests.launch.started import alone, free_port, losses, resumes_after_ten_kills, start, two_hosts
from tests.waiting import until

pytestmark = pytest.mark.xla

STEPS = 36  # of xla_script.py: 3 epochs of 12 batches
ONE = {"tpu": "v5e-8", "zone": "us-central1-a"}
TWO = {"tpu": "v5p-16", "zone": "us-east5-a"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    tmp_path = tmp_path_factory.mktemp("whole")
    return losses(start(written(tmp_path, **ONE).folder, tmp_path, "whole"))


@pytest.mark.long
def test_a_preempted_job_resumes_to_the_same_losses(tmp_path: Path, uninterrupted: str) -> None:
    folder = written(tmp_path, **ONE).folder
    for number, step in enumerate((5, 9)):
        assert start(folder, tmp_path, f"killed-{number}").preempt_at(step) == PREEMPTED
    last = start(folder, tmp_path, "last")
    assert losses(last) == uninterrupted
    # A start after the end trains nothing.
    again = start(folder, tmp_path, "again")
    assert again.ended() == 0
    assert "nothing is left to do" in again.text()
    log = (tmp_path / "bucket" / "logs" / "host-0.log").read_text()
    assert "losses " in log


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launchers_start_script_resumes(
    launcher: str, tmp_path: Path, uninterrupted: str
) -> None:
    folder = written(tmp_path, launcher, tpu="v5e-8", zone=ONE_HOST["v5e-8"]).folder
    assert start(folder, tmp_path, "killed").preempt_at(7) == PREEMPTED
    assert losses(start(folder, tmp_path, "last")) == uninterrupted


@pytest.mark.long
def test_ten_preemptions_at_random_steps(tmp_path: Path, uninterrupted: str) -> None:
    assert resumes_after_ten_kills(tmp_path, "torch_xla", STEPS, uninterrupted, **ONE) == 10


@pytest.fixture(scope="module")
def uninterrupted_on_two(tmp_path_factory: pytest.TempPathFactory) -> str:
    tmp_path = tmp_path_factory.mktemp("two")
    first, second = two_hosts(written(tmp_path, "skypilot", **TWO).folder, tmp_path, "whole")
    expected = losses(first)
    assert second.ended() == 0
    return expected


@pytest.mark.long
def test_two_hosts_resume_to_the_same_losses(tmp_path: Path, uninterrupted_on_two: str) -> None:
    """Two processes on this machine are the hosts; torchrun joins them, over gloo."""
    folder = written(tmp_path, "skypilot", **TWO).folder
    # The slice is taken away as a whole.
    first, second = two_hosts(folder, tmp_path, "killed")
    assert first.preempt_at(6) == PREEMPTED
    second.process.terminate()
    assert second.ended() == PREEMPTED
    first, second = two_hosts(folder, tmp_path, "last")
    assert losses(first) == uninterrupted_on_two
    assert second.ended() == 0


@pytest.mark.long
def test_a_host_that_comes_back_alone(tmp_path: Path, uninterrupted_on_two: str) -> None:
    """SIGTERM reaches one host: the other stores the same step, waits for it, and both continue."""
    folder = written(tmp_path, "skypilot", **TWO).folder
    ports = {"JOB_PORT": free_port(), "JOB_TRAIN_PORT": free_port()}
    first, second = two_hosts(folder, tmp_path, "killed", ports)
    assert first.preempt_at(6) == PREEMPTED
    (again,) = two_hosts(folder, tmp_path, "again", ports, hosts=(0,))
    assert losses(again) == uninterrupted_on_two
    assert second.ended() == 0
    assert "this host is still here: the program starts again" in second.text()


@pytest.mark.long
def test_a_host_that_is_lost_and_replaced(tmp_path: Path, uninterrupted_on_two: str) -> None:
    """The other host's program fails with an error of its own, and waits whether all are still there."""
    folder = written(tmp_path, "skypilot", **TWO).folder
    ports = {"JOB_PORT": free_port(), "JOB_TRAIN_PORT": free_port()}
    first, second = two_hosts(folder, tmp_path, "lost", ports)
    until(lambda: first.steps() >= 8, "step 8")
    second.lost()
    until(lambda: "the program ended with exit code" in first.text(), "the failure of host 0")
    (again,) = two_hosts(folder, tmp_path, "again", ports, hosts=(1,))
    assert losses(first) == uninterrupted_on_two
    assert again.ended() == 0
    assert "another host starts again: so does the program here" in first.text()


@pytest.mark.long
def test_a_host_that_is_lost_for_good_is_a_preemption(tmp_path: Path) -> None:
    folder = written(tmp_path, "skypilot", patience=20, **TWO).folder
    first, second = two_hosts(folder, tmp_path, "lost")
    until(lambda: first.steps() >= 8, "step 8")
    second.lost()
    assert first.ended() == PREEMPTED


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_that_never_comes_is_one_line_within_the_limit(host: int, tmp_path: Path) -> None:
    folder = written(tmp_path, "skypilot", patience=2, **TWO).folder
    (line,) = alone(folder, tmp_path, host).splitlines()
    missing = "host 0 of 2 (localhost) did not answer" if host else "host 1 of 2 did not come"
    assert line.endswith(f"{missing} within 2 s")


def test_a_program_that_fails_is_not_started_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import jax\n\nraise SystemExit(9)\n")
    folder = written(tmp_path, target=script, args=(), resumes=False, tpu="v5e-1").folder
    started = start(folder, tmp_path, "failed", replicas=1)
    assert started.ended() == 9
    failed = tmp_path / "bucket" / "failed"
    assert failed.read_text() == "9\n"
    # Mended, and started again by hand: the failure is forgotten.
    (folder / "program" / "train.py").write_text("import jax\n")
    assert start(folder, tmp_path, "mended", replicas=1).ended() == 0
    assert not failed.exists()


COUNTS = """
import os, pathlib, sys

def train():
    import jax

steps = pathlib.Path(os.environ["CHECKPOINTS"], "steps")
steps.parent.mkdir(parents=True, exist_ok=True)
for step in range(len(steps.read_text()) if steps.exists() else 0, 6):
    print("step", step + 1, flush=True)
    steps.open("a").write(".")
    if str(step + 1) in sys.argv[1:]:
        os.abort()
"""


@pytest.mark.parametrize(
    ("aborts", "code", "steps"),
    [("35", 0, 6), ("12345", STOPPED, 4)],
    ids=["lost", "its own fault"],
)
def test_a_start_after_an_abort_continues(
    aborts: str, code: int, steps: int, tmp_path: Path
) -> None:
    """A lost host aborts the programs of the others; a program that always aborts is at fault itself."""
    script = tmp_path / "train.py"
    script.write_text(COUNTS)
    folder = written(tmp_path, target=script, args=tuple(aborts), resumes=False, tpu="v5e-1").folder
    started = start(folder, tmp_path, "aborted", replicas=1)
    assert started.ended() == code
    lines = [line for line in started.text().splitlines() if line.startswith("step ")]
    assert lines == [f"step {step}" for step in range(1, steps + 1)]
    assert "ended by a signal (134), and this host is still here" in started.text()
    assert (tmp_path / "bucket" / ("failed" if code else "done")).exists()
