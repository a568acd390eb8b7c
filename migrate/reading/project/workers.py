"""Worker processes for the files of a project: one process keeps the tree of a file."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from migrate.progress import Progress, no_progress
from migrate.reading.script import Script
from migrate.syntax.interpreter import collect_seldom

# With fewer files than this, all work runs in this process: starting others takes longer.
WORTH_A_POOL = 8
# Memory in bytes for the trees that a process keeps, and for the facts about the project's calls.
MEMORY = 500_000_000
# Memory in bytes per byte of source: in a kept tree, and in the facts about a project's calls.
OF_A_TREE, OF_CALLS = 300, 100


class OfFile(Protocol):
    """Job for one file."""

    @property
    def path(self) -> Path:
        """Path of the file."""


Job = TypeVar("Job", bound=OfFile)
Result = TypeVar("Result")


class Workers:
    """Pool of processes that work on files; with few files, this process alone.

    Args:
        files: how many files there are to work at.
        processes: number of processes; by default one per core.
        source: how many bytes of source the project has.
    """

    def __init__(self, files: int, processes: int | None = None, source: int = 0) -> None:
        count = min(processes or _cores(), max(1, files))
        if processes is None and files < WORTH_A_POOL:
            count = 1
        # Spawned, not forked: the caller may have threads, and torch in it.
        spawn = multiprocessing.get_context("spawn")
        self._pools = [
            ProcessPoolExecutor(1, spawn, _begin, (source,))
            for _ in range(count if count > 1 else 0)
        ]
        with _script_unseen():
            for pool in self._pools:
                pool.submit(os.getpid)  # starts its process
        _make_room(source)
        self._load = [0] * count
        self._place: dict[Path, int] = {}

    def __enter__(self) -> Self:
        """Return the pool itself; leaving the block ends the processes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End the processes, and forget the trees."""
        for pool in self._pools:
            pool.shutdown(cancel_futures=error is not None)
        _kept.clear()
        _make_room(0)

    def run(
        self,
        work: Callable[[Job], Result],
        jobs: Sequence[Job],
        progress: Progress = no_progress,
        what: str = "",
    ) -> list[Result]:
        """Return the results of `work` for each of `jobs`, in their order.

        Args:
            work: a function of a module.
            jobs: what to do; each names its file.
            progress: reporter of the progress.
            what: description of the work, for `progress`.
        """
        progress(what, 0, len(jobs))
        if not self._pools:
            results = []
            for number, job in enumerate(jobs, 1):
                results.append(work(job))
                progress(what, number, len(jobs))
            return results
        futures: list[Future[Result]] = [
            self._pools[self._worker(job.path)].submit(work, job) for job in jobs
        ]
        results = []
        for number, future in enumerate(futures, 1):
            results.append(future.result())
            progress(what, number, len(jobs))
        return results

    def _worker(self, path: Path) -> int:
        """Return the process number for the file `path`: the process with the fewest bytes so far."""
        path = path.resolve()
        if path not in self._place:
            place = self._place[path] = self._load.index(min(self._load))
            self._load[place] += path.stat().st_size if path.exists() else 1
        return self._place[path]


@contextmanager
def _script_unseen() -> Iterator[None]:
    """Prevent processes started in the block from running the script that started this process.

    The workers run functions of modules. A script that works outside of `if __name__ == "__main__":` would
    otherwise do its work again in each of them, and each would fail.
    """
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    seen: dict[str, Any] = {name: vars(main)[name] for name in names if name in vars(main)}
    vars(main)["__spec__"] = None
    vars(main).pop("__file__", None)
    try:
        yield
    finally:
        vars(main).update(seen)


def _begin(source: int) -> None:
    """Prepare this process to work on the files of a project with this many bytes of source."""
    collect_seldom()
    _make_room(source)


_kept: dict[Path, Script] = {}
_room = MEMORY // OF_A_TREE  # bytes of source whose trees this process may keep


def _make_room(source: int) -> None:
    global _room
    _room = max(0, MEMORY - OF_CALLS * source) // OF_A_TREE


def keep(script: Script) -> None:
    """Keep the facts about a script for the next job on its file, while there is room.

    Files come in the same order each time, so evicting the oldest would drop each file just before it is
    needed.
    """
    _kept.pop(script.file, None)
    if sum(len(parsed.source.data) for parsed in _kept.values()) < _room:
        _kept[script.file] = script


def let_go(script: Script) -> None:
    """Release the facts about a finished script, unless they are kept."""
    if not is_kept(script):
        script.forget()


def is_kept(script: Script) -> bool:
    """Whether the facts about a script are kept for the next job on its file."""
    return _kept.get(script.file) is script


def kept(path: Path, data: bytes) -> Script | None:
    """Return the kept facts about the file `path` with the content `data`, or None."""
    script = _kept.get(path.resolve())
    return script if script is not None and script.source.data == data else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
