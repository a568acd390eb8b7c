"""Files to check, with the facts from their project: the functions that they call, and their callers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from migrate.check.check import ProjectFacts
from migrate.check.prescan import is_handed_hazards
from migrate.errors import MigrateError
from migrate.model.calls.analysis import Analysis
from migrate.model.facts import AnalyzedProject, ModuleCalls, calls_of_file
from migrate.model.project.project import Project, root_of
from migrate.reading.facts import Facts
from migrate.reading.project.reach import Entries, Leaving, leaving, reached, starts
from migrate.reading.project.workers import OfFile, Workers, keep, kept, let_go
from migrate.reading.script import Script
from migrate.reading.values.entries import StepFunction
from migrate.syntax.notebook.cells import code_of
from migrate.syntax.notebook.text import SUFFIX
from migrate.syntax.source import parse

Work = TypeVar("Work", bound=OfFile)
Result = TypeVar("Result")


@dataclass(frozen=True)
class CheckJob:
    """A file to check."""

    path: Path
    known: ProjectFacts


@dataclass(frozen=True)
class _Look:
    """A file in which steps are followed, with its name in findings of other files."""

    path: Path
    calls: ModuleCalls
    entries: Mapping[int, StepFunction]
    name: str


class Followed:
    """The projects of some files, and the functions that their steps run in other files.

    Args:
        files: the files to check.
        named: files and folders that the user named, and the files in these folders, also unreadable ones.
        processes: number of worker processes.

    Attributes:
        analyzed: the projects, analyzed.
    """

    def __init__(
        self, files: Sequence[Path], named: Mapping[Path, Sequence[Path]], processes: int
    ) -> None:
        self._files = files
        self._named = {path.resolve(): path for group in named.values() for path in group}
        # Most bytes of a notebook are pictures.
        scripts = (path for path in files if path.suffix == ".py" and path.exists())
        source = sum(path.stat().st_size for path in scripts)
        self.workers = Workers(len(files), processes, source)
        self._calls: dict[Path, ModuleCalls] = {}
        self._entries: dict[Path, dict[int, StepFunction]] = {}
        self._unread: dict[Path, None] = {}
        self.analyzed: list[AnalyzedProject] = []
        concerned = {*files, *(path for path in named if path.is_file())}
        for root, members in _by_root(named).items():
            if not concerned.isdisjoint(members):
                # A file without names that matter may call a file with such names.
                self._follow(root, members, _is_whole(root, named))

    def __enter__(self) -> Self:
        """Return the same object; leaving the block ends the processes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End the processes."""
        self.workers.__exit__(kind, error, _)

    def jobs(self, wanted: Callable[[Path], bool]) -> list[CheckJob]:
        """Return the jobs: the files, and the files that steps reach or that make batches, if `wanted`."""
        jobs = []
        for path in self._files:
            here = path.resolve()
            jobs.append(
                CheckJob(path, ProjectFacts(self._calls.get(here), self._entries.get(here, {})))
            )
        done = {path.resolve() for path in self._files}
        for here in self._handed_names():
            if here not in done and wanted(path := self._named[here]):
                done.add(here)
                known = ProjectFacts(self._calls[here], self._entries.get(here, {}))
                jobs.append(CheckJob(path, known))
        for here, calls in self._calls.items():
            entries, path = self._entries.get(here, {}), self._named.get(here, _shown(here))
            if (entries or calls.collating) and here not in done and wanted(path):
                whole = here in self._named
                jobs.append(CheckJob(path, ProjectFacts(calls, entries, whole)))
        return sorted(jobs, key=lambda job: not job.known.whole)

    def imported(self, wanted: Callable[[Path], bool]) -> list[Path]:
        """Return the imported files that nobody named."""
        paths = (_shown(here) for here in self._calls if here not in self._named)
        return [path for path in paths if wanted(path)]

    def _handed_names(self) -> Iterator[Path]:
        """Yield the files that use names with hazards through other files: `comm.barrier()`."""
        for here, calls in self._calls.items():
            if here in self._named and is_handed_hazards(calls):
                yield here

    def unread(self, wanted: Callable[[Path], bool]) -> list[Path]:
        """Return the imported files that could not be read, if they are `wanted` and not checked."""
        done = {path.resolve() for path in self._files}
        unread = (self._named.get(here, _shown(here)) for here in self._unread if here not in done)
        return [path for path in unread if wanted(path)]

    def _follow(self, root: Path, files: Sequence[Path], whole: bool) -> None:
        # In the order of `migrate rewrite`, which takes over the analysis of a whole project.
        scripts = sorted(files) if whole else files
        analysis = Analysis(Project.of_scripts(root, scripts, whole=whole))
        self._unread |= dict.fromkeys(analysis.project.unread_imports)
        calls = {path: calls_of_file(analysis, path) for path in analysis.scopes}
        self._calls |= calls
        self.analyzed.append(AnalyzedProject(analysis, calls))

        def look(paths: Sequence[Path], entries: Entries) -> Iterable[Iterable[Leaving]]:
            jobs = [
                _Look(path, self._calls[path], entries.get(path, {}), _below(path, root))
                for path in paths
            ]
            return self.workers.run(_leaving, jobs)

        self._entries |= reached(list(starts(analysis, self._calls)), look)


def _leaving(look: _Look) -> tuple[Leaving, ...]:
    try:
        data = code_of(look.path.read_bytes(), look.path)
        script = kept(look.path, data) or Script(parse(data, look.path), look.calls)
    except (OSError, MigrateError):
        return ()  # the check itself reports the error
    if look.path.suffix != SUFFIX:
        keep(script)
    leavings = tuple(leaving(Facts(script, look.entries), look.name))
    let_go(script)
    return leavings


def _by_root(named: Mapping[Path, Sequence[Path]]) -> dict[Path, list[Path]]:
    """Return the files in `named` by the root folder of their project."""
    needed: dict[Path, dict[Path, None]] = {}
    for path, files in named.items():
        root = root_of(path / "script.py" if path.is_dir() else path)
        needed.setdefault(root, {}).update(dict.fromkeys(files))
    return {root: list(files) for root, files in needed.items()}


def _is_whole(root: Path, named: Iterable[Path]) -> bool:
    """Whether the project in the folder `root` is checked as a whole."""
    return any(path.is_dir() and root.resolve().is_relative_to(path.resolve()) for path in named)


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name


def _shown(path: Path) -> Path:
    """Return the name of a file that the user did not name: relative to the working folder, if below it."""
    here = Path(os.getcwd()).resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path
