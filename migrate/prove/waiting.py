"""Ranks that wait for each other for ever, detected from outside: none works, and one waits in a
collective.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import migrate
import shims
from migrate.observe.places import is_the_users

# The environment variable with the folder in which each process notes its rank and its stacks.
DIRECTORY = "MIGRATE_WAITING_DIRECTORY"
# The environment variable with the seconds without work after which a run counts as hanging.
SECONDS = "MIGRATE_HANG_SECONDS"
DEFAULT_SECONDS = 60.0
# Scripts may have handlers for the ordinary signals.
SIGNAL = signal.SIGRTMAX - 1

# A waiting rank polls now and then; a working rank, on however busy a machine, gets more of a core than
# this.
_SHARE = 0.03
_LOOKS = 12  # checks in the time without work
_ANSWER_SECONDS = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[^\n]*\n", re.M)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.M)
_OURS = tuple(str(Path(package.__file__ or "").parent) for package in (shims, migrate))
_COLLECTIVES = ("/torch/distributed/", "/shims/_simulated/", "/torch/nn/parallel/distributed.py")


@dataclass(frozen=True)
class StackFrame:
    """Line of a stack: file, line and function."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Stack:
    """Stack of a rank.

    Attributes:
        frames: the stack of the thread that runs the script, innermost first.
    """

    frames: tuple[StackFrame, ...]

    @property
    def users(self) -> tuple[StackFrame, ...]:
        """Frames of the user's code, innermost first."""
        return tuple(frame for frame in self.frames if is_the_users(frame.file))

    @property
    def _called(self) -> tuple[StackFrame, ...]:
        """Frames of libraries that the user's innermost line called, innermost first."""
        users = self.users
        return self.frames[: self.frames.index(users[0])] if users else self.frames

    @property
    def collective(self) -> str:
        """Collective that the rank waits in; "" if it waits in none."""
        called = self._called
        for frame in reversed(called):
            if frame.file.endswith("/distributed_c10d.py") and _is_public(frame):
                return frame.function
        if any(frame.file.endswith("/nn/parallel/distributed.py") for frame in called):
            return "DistributedDataParallel"
        if any(frame.function == "_engine_run_backward" for frame in called):
            return "the reduction of gradients"
        if any(part in frame.file for frame in called for part in _COLLECTIVES):
            return "a collective"
        return ""

    def __str__(self) -> str:
        """Location in words: `in forward, all_gather (networks.py:27, called at train.py:82)`."""
        public = [
            frame for frame in reversed(self._called) if _is_public(frame) and not _is_ours(frame)
        ]
        torch = [
            frame for frame in public if "/torch/" in frame.file or "/torch_xla/" in frame.file
        ]
        outermost = next((frame.function for frame in torch or public), "")
        names = dict.fromkeys(filter(None, (outermost, self.collective)))
        users = self.users
        place = ", called at ".join(f"{Path(frame.file).name}:{frame.line}" for frame in users[:2])
        inside = f"in {', '.join(names)}" if names else "outside of a collective"
        return f"{inside} ({place})" if place else inside


def _is_public(frame: StackFrame) -> bool:
    return not frame.function.startswith(("_", "<")) and frame.function not in ("wrapper", "inner")


def _is_ours(frame: StackFrame) -> bool:
    return frame.file.startswith(_OURS)


def stack_of(dump: str) -> Stack:
    """Return the stack of the thread that runs the script, from faulthandler's dump of all threads."""
    threads = [
        Stack(
            tuple(
                StackFrame(match["file"], int(match["line"]), match["function"])
                for match in _FRAME.finditer(text)
            )
        )
        for text in _THREAD.split(dump)[1:]
    ]
    # Threads come before the main thread. Backward passes and replicas run in threads of their own.
    for users, collective in ((True, True), (True, False), (False, True)):
        for thread in threads:
            if (thread.users or not users) and (thread.collective or not collective):
                return thread
    return threads[-1] if threads else Stack(())


class Watch:
    """Watch of the ranks of a run, which detects that none works.

    Args:
        folder: folder in which each process notes its rank and its stacks.
        outside: turns paths of a mirror into those of the user.
        seconds: seconds without work after which the run counts as hanging; None: from the environment.
    """

    def __init__(
        self,
        folder: Path,
        outside: Callable[[str], str] = str,
        seconds: float | None = None,
    ) -> None:
        self._folder = folder
        self._outside = outside
        self.seconds = (
            float(os.environ.get(SECONDS, DEFAULT_SECONDS)) if seconds is None else seconds
        )
        self._looked = 0.0
        self._seen: deque[tuple[float, dict[int, float]]] = deque()

    def hang(self) -> str:
        """Description of where each rank waits, if they wait for ever; "" while they may continue."""
        now = time.monotonic()
        if now - self._looked < self.seconds / _LOOKS:
            return ""
        self._looked = now
        ranks = self.ranks()
        used = {process: _used(process) for process in ranks.values()}
        self._seen.append((now, used))
        while len(self._seen) > 1 and now - self._seen[1][0] >= self.seconds:
            self._seen.popleft()
        began, before = self._seen[0]
        if not used or now - began < self.seconds:
            return ""
        most = _SHARE * (now - began)
        if any(time - before.get(process, -most - 1) > most for process, time in used.items()):
            return ""
        stacks = {rank: self._stack(process) for rank, process in ranks.items()}
        # If it is no concern of ours, it is asked again after the same time.
        self._seen.clear()
        if not any(stack.collective for stack in stacks.values()):
            return ""
        return ", ".join(
            f"rank {rank} {'waits ' if not number else ''}{stack}"
            for number, (rank, stack) in enumerate(sorted(stacks.items()))
        )

    def ranks(self) -> dict[int, int]:
        """Process of each rank: the first that took it, because workers have its environment too."""
        noted = []
        for path in self._folder.glob("*.rank"):
            with contextlib.suppress(OSError, ValueError):
                noted.append((path.stat().st_mtime_ns, int(path.read_text()), int(path.stem)))
        processes: dict[int, int] = {}
        for _, rank, process in sorted(noted):
            processes.setdefault(rank, process)
        return processes

    def _stack(self, process: int) -> Stack:
        """Stack of a process, which writes it itself without running any Python."""
        path = self._folder / f"{process}.stack"
        before = path.stat().st_size if path.exists() else 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, SIGNAL)
        until, size = time.monotonic() + _ANSWER_SECONDS, before
        while time.monotonic() < until:
            time.sleep(0.1)
            last, size = size, path.stat().st_size if path.exists() else 0
            if size == last > before:
                break
        text = path.read_text(errors="replace")[before:] if path.exists() else ""
        return stack_of(self._outside(text))


def _used(process: int) -> float:
    """Seconds of CPU that a process and all its descendants have used."""
    return sum(map(_seconds, (process, *_descendants(process))))


def _descendants(process: int) -> Iterator[int]:
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                yield child
                yield from _descendants(child)


def _seconds(process: int) -> float:
    """Seconds of CPU of a process and of its children that have ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0


def noted(folders: Sequence[Path | None]) -> int:
    """Measure of what a run has written of its steps so far: a change is a sign of life."""
    paths = (path for folder in folders if folder is not None for path in folder.rglob("*"))
    sizes = 0
    for path in paths:
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size + path.stat().st_mtime_ns
    return sizes
