"""The program on this host: its command, its variables, its signals and its log."""

from __future__ import annotations

import os
import re
import shlex
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

# EX_TEMPFAIL: preempted, and the checkpoint is stored. `shims.resume` ends a program with it.
PREEMPTED = 75
# A host is missing or at fault: starting the job again would cost and change nothing.
STOPPED = 3
# Exit codes of a program that SIGABRT, SIGKILL, SIGSEGV or SIGTERM ended: perhaps another host was lost.
SIGNALS = (134, 137, 139, 143)
_PORT = 8476
_LAST_LINES = 200
_RANK_PREEMPTED = re.compile(rb"exitcode\s*: 75\b|exited with status 75\b")
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
        chips = self._trial or settings.chips
        return [
            *(sys.executable, "-u", "-m", "torch.distributed.run"),
            *(f"--nnodes={host.count}", f"--node-rank={host.index}", f"--nproc-per-node={chips}"),
            *(f"--master-addr={host.first}", f"--master-port={self._port}"),
            "--",  # torchrun would take --run of the program for its own --run-path
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
            **self._of_framework(),
            **settings.environment,
        }
        return variables | (self._of_trial() if self._trial else {})

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
        if settings.framework == "jax":
            return False
        return settings.processes == "chip" or (self._trial > 0 and self._host.count > 1)

    def _of_framework(self) -> dict[str, str]:
        cache = str(self._work / "cache")
        match self._settings.framework:
            case "jax":
                # Without the first, JAX trains on the CPU of a host whose TPU does not start.
                return {"JAX_PLATFORMS": "tpu,cpu", "JAX_COMPILATION_CACHE_DIR": cache}
            case "torch_tpu":
                return {
                    "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": cache
                } | self._slice_of_torch_tpu()
        # On the CPU, torch_xla cannot store a compiled program.
        return {} if self._trial else {"PJRT_DEVICE": "TPU", "XLA_PERSISTENT_CACHE_PATH": cache}

    def _slice_of_torch_tpu(self) -> dict[str, str]:
        """Return the variables that torch_tpu asks for under torchrun."""
        if self._trial or self._settings.processes != "chip":
            return {}
        words = [sys.executable, "-m", "torch.tpu.distributed"]
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        pairs = (word.partition("=") for word in shlex.split(printed.replace("export ", "")))
        return {name: value for name, mark, value in pairs if mark}

    def _of_trial(self) -> dict[str, str]:
        """Return the variables that stand in for a TPU on this machine's CPU."""
        if self._settings.framework == "jax":
            devices = f"--xla_force_host_platform_device_count={self._trial}"
            return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices}
        if self._is_torchrun():
            return {"MIGRATE_BACKEND": "cpu", "OMP_NUM_THREADS": "1"}
        from shims import activate

        return {**activate.environment("simulate", self._trial), "MIGRATE_BACKEND": "xla"}

    def _terminate(self, _: int, __: FrameType | None) -> None:
        self.terminated = True
        self._forward()

    def _forward(self) -> None:
        """Send SIGTERM to the processes that train."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        for number in _trainers(process.pid):
            try:
                os.kill(number, signal.SIGTERM)
            except ProcessLookupError:
                continue


def _trainers(parent: int) -> list[int]:
    """Return the processes that train: the workers that a process has spawned, or the process itself.

    A process that has spawned workers waits for them; SIGTERM would end it before they have stored anything.
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
        if any(name in words for name in _WORKERS) and _TRACKER not in words:
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
