"""Start scripts of jobs, run on this machine: simulated replicas, a local folder as bucket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import LIMIT, until


@dataclass
class Started:
    """A start script that runs, and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def steps(self) -> int:
        return self.text().count("step ")

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


def free_port() -> str:
    with socket.create_server(("", 0)) as server:
        return str(server.getsockname()[1])
