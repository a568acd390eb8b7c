"""Start scripts of torch_tpu programs, run here on simulated TPUs: the same losses after a preemption."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.launch.host.training import PREEMPTED, STOPPED
from tests.launch.jobs import LAUNCHERS, ONE_HOST, written
from tests.launch.started import alone, free_port, losses, resumes_after_ten_kills, start, two_hosts

pytestmark = pytest.mark.torch_tpu

STEPS = 36  # of tpu_script.py: 3 epochs of 12 batches
ONE = {"tpu": "v5e-8", "zone": "us-central1-a"}
TWO = {"tpu": "v5p-16", "zone": "us-east5-a"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    tmp_path = tmp_path_factory.mktemp("whole")
    folder = written(tmp_path, "gcloud", "torch_tpu", **ONE).folder
    return losses(start(folder, tmp_path, "whole", variables={"JOB_TRAIN_PORT": free_port()}))


def test_a_preempted_job_resumes_to_the_same_losses(tmp_path: Path, uninterrupted: str) -> None:
    """The program has dropout: the TPU's random state is a part of its checkpoints."""
    folder = written(tmp_path, "gcloud", "torch_tpu", **ONE).folder
    ports = {"JOB_TRAIN_PORT": free_port()}
    assert start(folder, tmp_path, "killed", variables=ports).preempt_at(9) == PREEMPTED
    assert losses(start(folder, tmp_path, "last", variables=ports)) == uninterrupted


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launchers_start_script_resumes_on_torch_tpu(
    launcher: str, tmp_path: Path, uninterrupted: str
) -> None:
    zone = ONE_HOST["v5e-8"]
    folder = written(tmp_path, launcher, "torch_tpu", tpu="v5e-8", zone=zone).folder
    ports = {"JOB_TRAIN_PORT": free_port()}
    assert start(folder, tmp_path, "killed", variables=ports).preempt_at(7) == PREEMPTED
    assert losses(start(folder, tmp_path, "last", variables=ports)) == uninterrupted


@pytest.mark.long
def test_ten_preemptions_on_torch_tpu(tmp_path: Path, uninterrupted: str) -> None:
    assert resumes_after_ten_kills(tmp_path, "torch_tpu", STEPS, uninterrupted, **ONE) == 10


def test_two_hosts_resume_to_the_same_losses(tmp_path: Path) -> None:
    """One host is preempted; the other waits for it, and both continue."""
    whole, folder = tmp_path / "whole", written(tmp_path, "skypilot", "torch_tpu", **TWO).folder
    whole.mkdir()
    first, second = two_hosts(folder, whole, "whole")
    expected = losses(first)
    assert second.ended() == 0
    ports = {"JOB_PORT": free_port(), "JOB_TRAIN_PORT": free_port()}
    first, second = two_hosts(folder, tmp_path, "killed", ports)
    assert first.preempt_at(6) == PREEMPTED
    (again,) = two_hosts(folder, tmp_path, "again", ports, hosts=(0,))
    assert losses(again) == expected
    assert second.ended() == 0
    assert "this host is still here: the program starts again" in second.text()


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_that_never_comes_is_one_line(host: int, tmp_path: Path) -> None:
    folder = written(tmp_path, "skypilot", "torch_tpu", patience=2, **TWO).folder
    (line,) = alone(folder, tmp_path, host).splitlines()
    assert line.endswith(" within 2 s")


def test_a_host_without_as_many_chips_is_one_line(tmp_path: Path) -> None:
    folder = written(tmp_path, "gcloud", "torch_tpu", **ONE).folder
    started = start(folder, tmp_path, "three", replicas=3)
    assert started.ended() == STOPPED
    (line,) = started.text().splitlines()
    assert "3 ranks requested, and no TPU host has 3 chips; use 1, 2, 4 or 8 ranks" in line
