"""The program on this host: its command, its variables, its signals and its log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO

from migrate.launch.host.hosts import SliceHost
from migrate.launch.host.settings import TRIAL, HostSettings
from migrate.launch.host.variables import tpu_variables, trial_variables
from shims.errors import ShimError

# EX_TEMPFAIL: preempted, and the checkpoint is stored. `shims.resume` ends a program with it.
PREEMPTED = 75
# A host is missing or at fault: starting the job again would cost and change nothing.
STOPPED = 3
# Exit codes of a program that SIGABRT, SIGKILL, SIGSEGV or SIGTERM ended: perhaps another host was lost.
SIGNALS = (134, 137, 139, 143)
_PORT = 8572  # not 8476, at which torch_xla's own processes listen
_LAST_LINES = 200
_RANK_PREEMPTED = re.compile(rb"exitcode\s*: 75\b|exited with status 75\b")
_RANK_OPTION = "migrate.launch.host.rank_option"
_TRACKER = "resource_tracker"
_WORKERS = ("multiprocessing.spawn", "multiprocessing.forkserver")


class HostTraining:
    """Runs of the program on this host, one after the other.

    Args:
        settings: the settings of the job.
        host: this host.
        work: a folder on the disk, with `cache`, `logs` and `checkpoints`.
        environment: the variables of this process.
    """

    def __init__(
        self,
        settings: HostSettings,
        host: SliceHost,
        work: Path,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        self._host = host
        self._work = work
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.terminated = False
        signal.signal(signal.SIGTERM, self._terminate)

    @property
    def checkpoints(self) -> str:
        """Folder that the program writes its checkpoints to."""
        if self._settings.copies:
            return str(self._work / "checkpoints")
        return self._settings.remote_checkpoints

    def problem(self) -> str:
        """Return why the program cannot run here, in one line; empty: it can."""
        try:
            self.variables()
        except ShimError as error:
            return str(error)
        return ""

    def run(self, folder: Path, log: Path) -> int:
        """Run the program once, and return its exit code; its output also goes to a log.

        Args:
            folder: the folder of the program.
            log: the file that the output is appended to.
        """
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                self.command(),
                cwd=folder,
                env=self.variables(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            last: deque[bytes] = deque(maxlen=_LAST_LINES)
            arguments = (self._process, file, last)
            copying = threading.Thread(target=_copy, args=arguments, daemon=True)
            copying.start()
            if self.terminated:
                self._forward()
            code = self._process.wait()
            copying.join(timeout=10)
        # torchrun and simulated replicas end with 1 where a rank ended with another code; they print it.
        return PREEMPTED if code > 0 and _RANK_PREEMPTED.search(b"".join(last)) else code

    def command(self) -> list[str]:
        """Return the command of the program."""
        settings, host = self._settings, self._host
        folders = {"{checkpoints}": self.checkpoints, "{data}": settings.data}
        words = list(settings.args)
        for mark, folder in folders.items():
            words = [word.replace(mark, folder) for word in words]
        script = [settings.entry, *words]
        if not self._is_torchrun():
            return [sys.executable, "-u", *script]
        ranks = self._trial or settings.ranks
        return [
            *(sys.executable, "-u", "-m", "torch.distributed.run"),
            *(f"--nnodes={host.count}", f"--node-rank={host.index}", f"--nproc-per-node={ranks}"),
            *(f"--master-addr={host.first}", f"--master-port={self._port}"),
            # torchrun would take --run of the program for its own --run-path
            *(("-m", "--", _RANK_OPTION, settings.option) if settings.option else ("--",)),
            *script,
        ]

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the program."""
        settings, host = self._settings, self._host
        variables = {
            **self._environment,
            "CHECKPOINTS": self.checkpoints,
            "DATA": settings.data,
            "HOST_INDEX": str(host.index),
            "HOST_COUNT": str(host.count),
            "COORDINATOR_ADDRESS": f"{host.first}:{self._port}",
        }
        cache, trial = self._work / "cache", self._trial
        if trial:
            stand_in = trial_variables(settings, cache, trial, torchrun=self._is_torchrun())
            return variables | settings.environment | stand_in
        of_tpu = tpu_variables(settings, host, cache, self._port)
        return variables | of_tpu | settings.environment

    @property
    def _port(self) -> str:
        """Port of host 0 for the program's own processes."""
        return self._environment.get("JOB_TRAIN_PORT") or str(_PORT)

    @property
    def _trial(self) -> int:
        """Replicas of a host in a trial; 0 on a TPU."""
        return int(self._environment.get(TRIAL) or 0)

    def _is_torchrun(self) -> bool:
        settings = self._settings
        if settings.processes == "chip":
            return True
        # Simulated replicas of torch_xla are those of one host: over several, gloo joins ranks of the CPU.
        return settings.framework == "torch_xla" and self._trial > 0 and self._host.count > 1

    def _terminate(self, _: int, __: FrameType | None) -> None:
        self.terminated = True
        self._forward()

    def _forward(self) -> None:
        """Send SIGTERM to the processes that train."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        for number in _trainers(process.pid, ranks=self._is_torchrun()):
            try:
                os.kill(number, signal.SIGTERM)
            except ProcessLookupError:
                continue


def _trainers(parent: int, *, ranks: bool) -> list[int]:
    """Return the processes that train: the workers that a process has spawned, or the process itself.

    A process that has spawned workers waits for them; SIGTERM would end it before they have stored anything.
    torchrun would kill its ranks 30 seconds after the signal.

    Args:
        parent: the program's process.
        ranks: whether each of its children trains, as those of torchrun do.
    """
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return [parent]
    workers = []
    for child in children:
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if _TRACKER not in words and (ranks or any(name in words for name in _WORKERS)):
            workers.append(int(child))
    return workers or [parent]


def _copy(process: subprocess.Popen[bytes], file: IO[bytes], last: deque[bytes]) -> None:
    """Copy the output of a program to this program's and to a log, and keep its last lines."""
    assert process.stdout is not None
    for line in iter(process.stdout.readline, b""):
        last.append(line)
        streams: tuple[IO[bytes], ...] = (sys.stdout.buffer, file)
        for stream in streams:
            stream.write(line)
            stream.flush()
