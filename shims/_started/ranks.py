"""Ranks of a script as processes that start and end together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from shims import activate
from shims._shared.ports import free_port
from shims._started.script import Start

# Seconds that the other ranks get after a failure to end by themselves, before they are killed.
_GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.05


def run(script: Path, args: Sequence[str], start: Start, ranks: int, env: dict[str, str]) -> int:
    """Run the script's processes and wait for them. If one fails, end all.

    Args:
        script: the script.
        args: its arguments.
        start: the launch style that it expects.
        ranks: the number of ranks.
        env: the complete environment of its processes.

    Returns:
        The exit code of the first rank that failed; 128 + n for a rank ended by signal n.
    """
    is_one_each = start.style in ("environment", "option")
    port, store_port = str(free_port()), str(free_port())
    env = {**env, activate.PORT: str(free_port()), activate.ONE_MACHINE: "1"}
    processes = []
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for rank in range(ranks if is_one_each else 1):
            variables = _torchrun(rank, ranks, port) if is_one_each else {}
            if is_one_each and env.get(activate.BACKEND) == "xla":
                variables[activate.STORE_PORT] = store_port
            option = [f"{start.option}={rank}"] if start.style == "option" else []
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(script), *option, *args],
                    env={**env, **variables},
                    start_new_session=True,
                    stdin=None if rank == 0 else subprocess.DEVNULL,
                )
            )
        while not received:
            codes = [process.poll() for process in processes]
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                # Another rank may have failed first and be about to report it: its traceback is the
                # cause.
                _wait(processes, _GRACE_SECONDS)
                code = codes[failed[0]] or 0
                if is_one_each and ranks > 1:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    sys.stderr.write(
                        f"shims: rank {failed[0]} of {ranks} failed ({how}); all were ended\n"
                    )
                return 128 - code if code < 0 else code
            if all(code == 0 for code in codes):
                return 0
            time.sleep(_POLL_SECONDS)
        return 128 + received[0]
    finally:
        _end(processes)
        for number, handler in before.items():
            signal.signal(number, handler)


def _torchrun(rank: int, ranks: int, port: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes and their children: first by a request, then by a kill."""
    _signal(processes, signal.SIGTERM)
    _wait(processes, _GRACE_SECONDS)
    _signal(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def _signal(processes: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The process group includes loader workers and spawned ranks.
            os.killpg(process.pid, number)
