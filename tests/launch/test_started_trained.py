"""Start scripts of programs that `migrate train` writes: preempted, and continued with the same losses."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from migrate.launch.host.training import PREEMPTED
from tests.launch.jobs import LAUNCHERS, ONE_HOST, trained_program, written
from tests.launch.started import Started, alone, free_port, start, two_hosts
from tests.waiting import until

UPDATES = 30
ONE = {"tpu": "v5e-8", "zone": "us-central1-a"}
TWO = {"tpu": "v5p-16", "zone": "us-east5-a"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The written program; each update takes a moment, to be preempted in."""
    folder = trained_program(tmp_path_factory.mktemp("trained") / "jax_program")
    data = folder / "data.py"
    text = data.read_text().replace("UPDATES = 12", f"UPDATES = {UPDATES}")
    waits = "import time\n\n    time.sleep(0.05)"
    data.write_text(text.replace('"""Tests put their own here."""', waits))
    return folder


def job(tmp_path: Path, program: Path, launcher: str = "gke", **options: object) -> Path:
    weights = str(tmp_path / "weights")
    args = ("--checkpoints", "{checkpoints}", "--every", "4", "--save", weights)
    return written(tmp_path, launcher, target=program, args=args, **options).folder


def ended(started: Started) -> dict[int, str]:
    assert started.ended() == 0, started.text()
    return started.updates()


def weights(tmp_path: Path) -> bytes:
    return (tmp_path / "weights").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, program: Path
) -> tuple[dict[int, str], bytes]:
    tmp_path = tmp_path_factory.mktemp("whole")
    updates = ended(start(job(tmp_path, program, **ONE), tmp_path, "whole"))
    assert sorted(updates) == list(range(UPDATES))
    return updates, weights(tmp_path)


def preempted(
    folder: Path, tmp_path: Path, step: int, uninterrupted: tuple[dict[int, str], bytes]
) -> bool:
    """Whether losses and weights of a job that is preempted after a step are those without it."""
    killed = start(folder, tmp_path, "killed")
    assert killed.preempt_at(step) == PREEMPTED
    last = ended(start(folder, tmp_path, "last"))
    assert len(last) < UPDATES
    return (killed.updates() | last, weights(tmp_path)) == uninterrupted


@pytest.mark.long
def test_a_preempted_program_resumes_to_the_same_losses_and_weights(
    tmp_path: Path, program: Path, uninterrupted: tuple[dict[int, str], bytes]
) -> None:
    assert preempted(job(tmp_path, program, **ONE), tmp_path, 11, uninterrupted)


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launchers_start_script_resumes_a_trained_program(
    launcher: str, tmp_path: Path, program: Path, uninterrupted: tuple[dict[int, str], bytes]
) -> None:
    folder = job(tmp_path, program, launcher, tpu="v5e-8", zone=ONE_HOST["v5e-8"])
    assert preempted(folder, tmp_path, 7, uninterrupted)


@pytest.mark.long
def test_ten_preemptions_of_a_trained_program(
    tmp_path: Path, program: Path, uninterrupted: tuple[dict[int, str], bytes]
) -> None:
    draw = random.Random(41)
    equal = 0
    for number in range(10):
        place = tmp_path / str(number)
        place.mkdir()
        step = draw.randrange(1, UPDATES - 4)
        equal += preempted(job(place, program, **ONE), place, step, uninterrupted)
    assert equal == 10


@pytest.fixture(scope="module")
def uninterrupted_on_two(
    tmp_path_factory: pytest.TempPathFactory, program: Path
) -> tuple[dict[int, str], bytes]:
    tmp_path = tmp_path_factory.mktemp("two")
    first, second = two_hosts(job(tmp_path, program, "skypilot", **TWO), tmp_path, "whole")
    updates = ended(first)
    assert (second.ended(), second.updates()) == (0, {}), second.text()
    return updates, weights(tmp_path)


@pytest.mark.long
def test_two_hosts_train_together(uninterrupted_on_two: tuple[dict[int, str], bytes]) -> None:
    assert sorted(uninterrupted_on_two[0]) == list(range(UPDATES))


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_that_never_comes_is_one_line(host: int, tmp_path: Path, program: Path) -> None:
    folder = job(tmp_path, program, "skypilot", patience=2, **TWO)
    (line,) = alone(folder, tmp_path, host).splitlines()
    assert line.endswith(" within 2 s")


@pytest.mark.long
def test_two_hosts_that_are_preempted_continue(
    tmp_path: Path, program: Path, uninterrupted_on_two: tuple[dict[int, str], bytes]
) -> None:
    """SIGTERM reaches one host; both end after the same update, and the slice comes back."""
    folder = job(tmp_path, program, "skypilot", **TWO)
    first, second = two_hosts(folder, tmp_path, "killed")
    until(lambda: first.steps() >= 6, "update 6")
    second.process.send_signal(signal.SIGTERM)
    assert second.ended() == PREEMPTED, second.text()
    until(lambda: "this host is still here" in first.text(), "the meeting of host 0")
    first.process.send_signal(signal.SIGTERM)
    assert first.ended() == PREEMPTED
    third, fourth = two_hosts(folder, tmp_path, "last")
    last = ended(third)
    assert fourth.ended() == 0
    assert len(last) < UPDATES
    assert (first.updates() | last, weights(tmp_path)) == uninterrupted_on_two


@pytest.mark.long
def test_a_lost_host_aborts_the_other_and_both_start_again(
    tmp_path: Path, program: Path, uninterrupted_on_two: tuple[dict[int, str], bytes]
) -> None:
    """JAX aborts the program of a host whose other host is gone; its checkpoints are not."""
    folder = job(tmp_path, program, "skypilot", **TWO)
    ports = {"JOB_PORT": free_port(), "JOB_TRAIN_PORT": free_port()}
    first, second = two_hosts(folder, tmp_path, "lost", ports)
    until(lambda: first.steps() >= 10, "update 10")
    second.lost()
    until(lambda: "the program starts again" in first.text(), "the abort of host 0")
    (again,) = two_hosts(folder, tmp_path, "again", ports, hosts=(1,))
    assert ended(first) == uninterrupted_on_two[0]
    assert again.ended() == 0
    assert weights(tmp_path) == uninterrupted_on_two[1]
