"""The end of a process that has talked over gloo.

A thread of gloo says that a collective is done, and lets go of its tensors after that. Where it is the last
to hold one that Python has seen, it asks for Python's lock. While Python ends, whoever asks for that is
unwound, which C++ does not let through: "terminate called without an active exception", exit code 134 after a
run that was right. On a busy machine the thread may be that late. PyTorch knows it, and gave up a mend:
https://github.com/pytorch/pytorch/pull/179291. `destroy_process_group` does not help, since
DistributedDataParallel keeps the group and its threads.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
from pathlib import Path

# Longer than any thread is kept from a core; a thread that computes by itself is not waited for any longer.
_SECONDS = 1.0
_LOOK_SECONDS = 0.001


@functools.cache
def let_go_at_exit() -> None:
    """Before Python ends, let gloo's threads finish what they are at."""
    atexit.register(let_go)


def let_go(seconds: float = _SECONDS) -> None:
    """Wait until no other thread of this process wants to run, `seconds` at most."""
    deadline = time.monotonic() + seconds
    quiet = 0
    # Twice: one that began to wait for Python's lock just before a look seems idle in it, and gets the lock
    # while this thread sleeps.
    while quiet < 2 and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        quiet = 0 if _others_run() else quiet + 1


def _others_run() -> bool:
    own = threading.get_native_id()
    for task in Path("/proc/self/task").glob("*/stat"):
        # A thread that ends meanwhile has no file.
        with contextlib.suppress(OSError):
            # Behind the name, which may hold blanks and brackets: R is running, or waits for a core.
            if (
                task.read_text().rpartition(")")[2].split()[0] == "R"
                and int(task.parent.name) != own
            ):
                return True
    return False
