"""A process in a session of its own: what `run` gives back, and that nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from migrate import process
from tests.waiting import until

# Starts a child that would outlive it, and says its process id.
LINGERING = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print(child.pid, flush=True)
"""


def ran(code: str, seconds: float = 60.0, **how: object) -> tuple[int | None, str]:
    command = [sys.executable, "-c", code]
    return process.run(command, seconds=seconds, environment=dict(os.environ), **how)  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet has ended too."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_the_exit_code_and_what_it_printed() -> None:
    both = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    assert ran(both) == (3, "out\nerr\n")
    assert ran(both, keep="errors") == (3, "err\n")
    assert ran("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") == (-9, "")


def test_its_time_is_over_and_all_that_it_started_ends() -> None:
    for seconds in (3.0, 30.0, 300.0):  # until it has time enough to begin
        code, printed = ran(LINGERING + "time.sleep(600)", seconds=seconds)
        assert code is None
        if printed:
            break
    until(lambda: gone(int(printed)), "the child's end")


def test_who_waits_may_say_that_it_is_enough() -> None:
    asked: list[int] = []
    started = process.start([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert process.wait(started, None, lambda: asked.append(1) or len(asked) // 2 or None) == 1
    finally:
        process.end(started)
    assert len(asked) == 2
    assert started.returncode == -9


def test_a_group_is_asked_before_it_is_killed(tmp_path: Path) -> None:
    left = tmp_path / "left"
    code = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(left)!r}).touch(), sys.exit(0)))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    started = process.start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started.stdout:
        started.stdout.readline()
        process.end(started, grace=20.0)
    assert left.exists()
    assert started.returncode == 0
