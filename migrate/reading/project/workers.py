"""Processes that work at the files of a project: a file is always in the same one, which keeps its tree."""

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
from migrate.syntax.memory import collect_seldom

# Fewer files than that are worked at in this process: starting others takes longer.
WORTH_A_POOL = 8
# Bytes of memory for the trees that a process keeps, and for what is known of the project's calls.
MEMORY = 500_000_000
# Bytes of memory that a byte of source takes: in a tree that is kept, in what is known of a project's calls.
OF_A_TREE, OF_CALLS = 300, 100


class OfFile(Protocol):
    """Something to do for one file."""

    @property
    def path(self) -> Path:
        """The file."""


Job = TypeVar("Job", bound=OfFile)
Result = TypeVar("Result")


class Workers:
    """Processes that work at files; with few files, this process does.

    Args:
        files: how many files there are to work at.
        processes: how many work at them; by default one for each core.
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
        """Return the same object; leaving the block ends the processes."""
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
        """Return what `work` gives for each of `jobs`, in their order.

        Args:
            work: a function of a module.
            jobs: what to do; each names its file.
            progress: is told how far it is.
            what: what is done, for `progress`.
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
        """Return the number of the process for the file `path`: the one with the fewest bytes so far."""
        path = path.resolve()
        if path not in self._place:
            place = self._place[path] = self._load.index(min(self._load))
            self._load[place] += path.stat().st_size if path.exists() else 1
        return self._place[path]


@contextmanager
def _script_unseen() -> Iterator[None]:
    """Let the processes that are started in the block not run the script that has started this one.

    They work with functions of modules. A script that does its work outside of `if __name__ == "__main__":`
    would do it again in each of them, and each would end in an error.
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
    """Make this process ready to work at the files of a project with so many bytes of source."""
    collect_seldom()
    _make_room(source)


_kept: dict[Path, Script] = {}
_room = MEMORY // OF_A_TREE  # bytes of source whose trees this process may keep


def _make_room(source: int) -> None:
    global _room
    _room = max(0, MEMORY - OF_CALLS * source) // OF_A_TREE


def keep(script: Script) -> None:
    """Keep what is known of a script for the next work at its file, while there is room for it.

    Files are worked at in the same order again: to make room by what was kept first would lose each just
    before it is asked for.
    """
    _kept.pop(script.file, None)
    if sum(len(parsed.source.data) for parsed in _kept.values()) < _room:
        _kept[script.file] = script


def let_go(script: Script) -> None:
    """Forget what is known of a script that is done with, unless it is kept."""
    if _kept.get(script.file) is not script:
        script.forget()


def kept(path: Path, data: bytes) -> Script | None:
    """Return what was kept of the file `path` with the content `data`; None where nothing was."""
    script = _kept.get(path.resolve())
    return script if script is not None and script.source.data == data else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
