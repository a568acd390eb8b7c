"""Start scripts of jobs, run on this machine: simulated replicas, a local folder as bucket."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from migrate.launch.host.training import PREEMPTED, STOPPED
from tests.launch.jobs import written
from tests.waiting import LIMIT, until


@dataclass
class Started:
    """A start script that runs, and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def steps(self) -> int:
        return len(re.findall(r"^(?:step|update) \d", self.text(), re.MULTILINE))

    def updates(self) -> dict[int, str]:
        """Return the line of each update that a program of `migrate train` printed."""
        lines = re.findall(r"^update (\d+): (.*)$", self.text(), re.MULTILINE)
        return {int(number): line for number, line in lines}

    def ended(self) -> int:
        return self.process.wait(LIMIT)

    def preempt_at(self, steps: int) -> int:
        """Send SIGTERM once the program has made so many steps, and return the exit code."""
        until(lambda: self.steps() >= steps or self.process.poll() is not None, f"step {steps}")
        assert self.process.poll() is None, self.text()
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def lost(self) -> None:
        """Kill the script and all that it started."""
        assert self.process.poll() is None, self.text()
        for number in _tree(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait(LIMIT)


def _tree(parent: int) -> list[int]:
    """Return a process, which is stopped first, and all below it."""
    try:
        os.kill(parent, signal.SIGSTOP)  # it starts no more
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except (OSError, ProcessLookupError):
        return []
    return [parent, *(number for child in children for number in _tree(int(child)))]


def start(
    folder: Path,
    tmp_path: Path,
    name: str,
    *,
    replicas: int = 2,
    variables: Mapping[str, str] | None = None,
) -> Started:
    """Start a job's start.sh as a launcher would, with the variables of its hosts."""
    environment = {
        **os.environ,
        "JOB_TRIAL": str(replicas),
        "JOB_PYTHON": sys.executable,
        "JOB_BUCKET": str(tmp_path / "bucket"),
        "JOB_WORK": str(tmp_path / f"work-{name}"),
        "JOB_SKIP_DOCTOR": "1",
        **(variables or {}),
    }
    log = tmp_path / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", folder / "start.sh"], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    return Started(process, log)


def losses(started: Started) -> str:
    """Return the line of losses that the program prints at its end."""
    assert started.ended() == 0, started.text()
    (line,) = [line for line in started.text().splitlines() if line.startswith("losses ")]
    return line


def two_hosts(
    folder: Path,
    tmp_path: Path,
    name: str,
    ports: dict[str, str] | None = None,
    hosts: tuple[int, ...] = (0, 1),
) -> list[Started]:
    """Start a job of SkyPilot on hosts that are processes here."""
    ports = ports or {"JOB_PORT": free_port(), "JOB_TRAIN_PORT": free_port()}
    addresses = {"SKYPILOT_NODE_IPS": "localhost\nlocalhost"} | ports
    return [
        start(
            folder,
            tmp_path,
            f"{name}-{host}",
            replicas=1,
            variables={"SKYPILOT_NODE_RANK": str(host)} | addresses,
        )
        for host in hosts
    ]


def alone(folder: Path, tmp_path: Path, host: int) -> str:
    """Start one of two hosts of a job of SkyPilot, and return all that it prints."""
    ports = {"JOB_PORT": free_port(), "JOB_TRAIN_PORT": free_port()}
    (started,) = two_hosts(folder, tmp_path, "alone", ports, hosts=(host,))
    assert started.ended() == STOPPED, started.text()
    assert (tmp_path / "bucket" / "failed").exists()
    return started.text()


def resumes_after_ten_kills(
    tmp_path: Path, framework: str, steps: int, uninterrupted: str, **options: object
) -> int:
    """Return how many of ten jobs that were preempted at random steps ended with the same losses."""
    draw = random.Random(41)
    equal = 0
    for number in range(10):
        place = tmp_path / str(number)
        place.mkdir()
        folder = written(place, "gcloud", framework, **options).folder
        step = draw.randrange(1, steps - 4)
        ports = {"JOB_TRAIN_PORT": free_port()}
        killed = start(folder, place, "killed", variables=ports)
        assert killed.preempt_at(step) == PREEMPTED, step
        equal += losses(start(folder, place, "last", variables=ports)) == uninterrupted
    return equal


def free_port() -> str:
    with socket.create_server(("", 0)) as server:
        return str(server.getsockname()[1])
