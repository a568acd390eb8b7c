"""Clean exit of a process that used gloo.

A gloo thread reports a collective as done before it releases the tensors. If it holds the last
reference to a tensor that Python has seen, it requests the GIL. A thread that requests the GIL
while Python shuts down is unwound, which C++ does not allow. The process aborts with "terminate
called without an active exception" and exit code 134, although the run was correct. On a busy
machine the thread may be that late. PyTorch knows the problem, and a fix was abandoned:
https://github.com/pytorch/pytorch/pull/179291. `destroy_process_group` does not help, because
DistributedDataParallel keeps the group and its threads.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
from pathlib import Path

# Longer than any thread waits for a core. A thread that is computing is not waited for longer.
_SECONDS = 1.0
_LOOK_SECONDS = 0.001


@functools.cache
def let_go_at_exit() -> None:
    """Let gloo's threads finish before Python exits."""
    atexit.register(let_go)


def let_go(seconds: float = _SECONDS) -> None:
    """Wait until no other thread of this process is runnable, for `seconds` at most."""
    deadline = time.monotonic() + seconds
    quiet = 0
    # Checked twice: a thread that started to wait for the GIL just before a check looks idle, and
    # gets the GIL while this thread sleeps.
    while quiet < 2 and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        quiet = 0 if _others_run() else quiet + 1


def _others_run() -> bool:
    this_thread = threading.get_native_id()
    for task in Path("/proc/self/task").glob("*/stat"):
        # The file of a thread that has ended is gone.
        with contextlib.suppress(OSError):
            # After the name, which may contain spaces and brackets. R: running or waiting for a
            # core.
            if (
                task.read_text().rpartition(")")[2].split()[0] == "R"
                and int(task.parent.name) != this_thread
            ):
                return True
    return False
