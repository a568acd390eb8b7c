"""Process in a session of its own: started, waited for, and ended with all its children."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

_POLL_SECONDS = 0.2
_EXIT_OF_PARSERS = 2
CORRECT_ARGUMENTS = "correct them; arguments of the script go after --"


def start(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
    """Start the command as `Popen` does; one signal to its group also reaches all its children."""
    return subprocess.Popen(command, start_new_session=True, **how)


def wait(
    process: subprocess.Popen[bytes],
    seconds: float | None,
    meanwhile: Callable[[], int | None] = lambda: None,
) -> int | None:
    """Return the exit code, or what `meanwhile` returns first; None if the time is over and it still runs.

    Args:
        seconds: time limit; None: no limit.
        meanwhile: called a few times a second; a number ends the waiting, None does not.
    """
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        left = _POLL_SECONDS if until is None else until - time.monotonic()
        try:
            return process.wait(max(0.0, min(_POLL_SECONDS, left)))
        except subprocess.TimeoutExpired:
            said = meanwhile()
            if said is not None or left <= 0:
                return said


def end(process: subprocess.Popen[bytes], grace: float = 0.0) -> None:
    """End the rest of the process group, also if the process itself has ended.

    Args:
        grace: seconds between asking the group to end and killing it; 0: it is killed at once.
    """
    if grace:
        _signal_group(process.pid, signal.SIGTERM)
        until = time.monotonic() + grace
        while _group_lives(process) and time.monotonic() < until:
            time.sleep(0.02)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def run(
    command: Sequence[str],
    *,
    seconds: float,
    environment: dict[str, str],
    cwd: Path | None = None,
    keep: Literal["errors", "both"] = "both",
    meanwhile: Callable[[], int | None] = lambda: None,
) -> tuple[int | None, str]:
    """Return the exit code (None after the time limit) and the output.

    Args:
        keep: the output to return: all, or only stderr.
    """
    # A file, no pipe: a child that inherits it may continue to write, but nobody waits for its end.
    with TemporaryFile() as printed:
        process = start(
            command,
            stdout=subprocess.DEVNULL if keep == "errors" else printed,
            stderr=printed,
            env=environment,
            cwd=cwd,
        )
        try:
            code = wait(process, seconds, meanwhile)
        finally:
            if process.poll() is None:
                end(process)
        printed.seek(0)
        return code, printed.read().decode(errors="replace")


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is None:
        return True
    # From Linux's table of processes, as a signal cannot tell an ended process that nobody has
    # waited for from a living one. After the name in parentheses: state, parent, group.
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group, *_ = stat.read_text().rpartition(")")[2].split()
            if int(group) == process.pid and state != "Z":
                return True
    return False


def refused_arguments(returncode: int | None, output: str) -> str:
    """Return the last line of an argument parser that ended the script, "" if none did.

    The parser of every rank prints its usage and that line; argparse and click end with exit code 2.
    """
    if returncode != _EXIT_OF_PARSERS or not re.search(r"^usage: ", output, re.M | re.I):
        return ""
    lines = re.findall(r"^(?:\S+: )?error: (.+)$", output, re.M | re.I)
    return lines[-1].strip() if lines else ""


def last_line(output: str) -> str:
    """Return the last line of a process's output that is not blank."""
    return next(
        (line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output"
    )
