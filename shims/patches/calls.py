"""Call log: which CUDA calls the program made, at which line, and their answers.

`MIGRATE_SHIMS_LOG=1` writes the log to stderr at the end of each process; a path writes it to that
file (with the rank in its name if there are several). Without the variable no call is recorded.
"""

from __future__ import annotations

import atexit
import collections
import functools
import inspect
import multiprocessing
import os
import sys
import threading
from multiprocessing import util
from pathlib import Path
from typing import Any

VARIABLE = "MIGRATE_SHIMS_LOG"

# Modules whose frames lie between the user's line and the patch.
_INTERNAL = frozenset(
    {"torch", "torch_xla", "shims", "migrate", "concurrent", "threading", "contextlib", "functools"}
)
_COUNTS: collections.Counter[tuple[str, str, str]] = collections.Counter()
_LOCK = threading.Lock()
_STATE = {"reported_by": 0}


def enabled() -> bool:
    """Whether the log is requested."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def internal(frame: Any) -> bool:
    """Whether a frame is torch's or the shims' own."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL


def user_line() -> str:
    """Return the innermost `file:line` of the program itself, or "" if only torch is on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if not internal(frame) and not frame.f_code.co_filename.startswith("<frozen"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def saw(name: str, answers: str) -> None:
    """Count one call of the program."""
    line = user_line()
    if line:
        with _LOCK:
            _COUNTS[name, answers, line] += 1


def logged(name: str, answers: str, replacement: Any) -> Any:
    """Return `replacement`, counted at each call if there is a log; otherwise the same object."""
    if not enabled() or not inspect.isfunction(replacement):
        return replacement

    @functools.wraps(replacement)
    def counted(*args: Any, **kwargs: Any) -> Any:
        # Calls by torch itself are not the program's to rewrite.
        if not internal(sys._getframe(1)):
            saw(name, answers)
        return replacement(*args, **kwargs)

    return counted


def report() -> str:
    """Return the readable log: for each line of the program its calls, their number and their answers."""
    with _LOCK:
        counts = sorted(_COUNTS.items(), key=lambda item: _location_key(item[0][2]))
    lines = ["shims: CUDA calls answered; rewrite these lines to run without the shims:"]
    for (name, answers, where), count in counts:
        lines.append(f"  {where}: {name} ({count} time{'s' if count > 1 else ''}): {answers}")
    if not counts:
        lines = ["shims: the program made no CUDA call"]
    return "\n".join(lines) + "\n"


def _location_key(where: str) -> tuple[str, int]:
    file, _, line = where.rpartition(":")
    return file, int(line)


def report_at_exit() -> None:
    """Write the report when this process ends, also in a child of multiprocessing."""
    if not enabled():
        return
    atexit.register(_write)
    # Before Python 3.13, children of multiprocessing exit without atexit.
    util.Finalize(None, _write, exitpriority=0)


def _write() -> None:
    if _STATE["reported_by"] == os.getpid() or not _COUNTS:
        return
    _STATE["reported_by"] = os.getpid()
    where = os.environ[VARIABLE]
    rank = os.environ.get("RANK")
    if where == "1":
        title = f"[rank {rank}] " if rank else ""
        sys.stderr.write(title + report())
        return
    path = Path(where)
    # Each child of multiprocessing writes a separate file.
    if rank is not None or multiprocessing.parent_process() is not None:
        path = path.with_name(f"{path.name}.{rank or os.getpid()}")
    path.write_text(report())
