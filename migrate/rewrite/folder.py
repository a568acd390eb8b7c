"""Rewrite a whole folder: which files change, what is left to do by hand, in which order."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from migrate.errors import MigrateError
from migrate.reading.calls.analysis import Analysis
from migrate.reading.calls.facts import ModuleCalls, calls_of_file
from migrate.reading.notebook.text import SUFFIX, parse_notebook
from migrate.reading.project.project import Project
from migrate.reading.tree.memory import collect_seldom, seldom_collected
from migrate.reading.tree.prescan import concerns_rules
from migrate.reading.tree.source import UnreadableScriptError, parse
from migrate.rewrite.after_folder import left_in_functions
from migrate.rewrite.answered import without_answered
from migrate.rewrite.notebook import check_notebook, rewrite_notebook
from migrate.rewrite.options import DEFAULT, Options
from migrate.rewrite.order import in_order
from migrate.rewrite.story import Note, NotStableError, check_stable, rewrite_source, unified_diff

# Not part of the source: left out of the rewritten folder, and not looked into.
LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox"}
    | {".ipynb_checkpoints"}
)
# Fewer files than that are rewritten in this process: starting others takes longer.
WORTH_A_POOL = 8
Given = TypeVar("Given")
Result = TypeVar("Result")


@dataclass(frozen=True)
class FileRewrite:
    """One Python file or notebook of a folder and what became of it.

    Args:
        name: its path in the folder.
        before, after: its content.
        edits, findings: as of a single script.
        problem: why it could not be rewritten; it is copied as it is then.
    """

    name: Path
    before: bytes
    after: bytes
    edits: tuple[Note, ...] = ()
    findings: tuple[Note, ...] = ()
    problem: str = ""

    @property
    def changed(self) -> bool:
        """Whether its content is another one."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff, as git writes it."""
        return unified_diff(self.before, self.after, f"a/{self.name}", f"b/{self.name}", self.name)


@dataclass(frozen=True)
class FolderRewrite:
    """A folder and what became of its Python files and notebooks.

    Args:
        folder: the folder.
        files: the Python files and notebooks that concern any rule, in the order of their names.
        untouched: the number of Python files that concern none.
        notebooks: all Jupyter notebooks, those among `files` included.
        left_to_do: (file, finding) for all findings, in the order in which to mend them.
    """

    folder: Path
    files: tuple[FileRewrite, ...]
    untouched: int
    notebooks: tuple[Path, ...]
    left_to_do: tuple[tuple[Path, Note], ...] = field(repr=False)

    @property
    def changed(self) -> tuple[FileRewrite, ...]:
        """The files whose content is another one."""
        return tuple(file for file in self.files if file.changed)

    def diff(self) -> str:
        """Return all changes as one patch."""
        return "".join(file.diff() for file in self.changed)

    @property
    def scripts(self) -> int:
        """The number of Python files."""
        return self.untouched + sum(file.name.suffix != SUFFIX for file in self.files)

    @property
    def problems(self) -> tuple[FileRewrite, ...]:
        """The files that could not be rewritten."""
        return tuple(file for file in self.files if file.problem)

    @cached_property
    def edits_by_rule(self) -> dict[str, int]:
        """The number of edits of each rule, the most frequent first."""
        return _counts(note for file in self.files for note in file.edits)

    @cached_property
    def findings_by_rule(self) -> dict[str, int]:
        """The number of findings of each rule, the most frequent first."""
        return _counts(note for file in self.files for note in file.findings)


def _counts(notes: Iterator[Note]) -> dict[str, int]:
    return dict(Counter(note.rule for note in notes).most_common())


@seldom_collected()
def rewrite_folder(
    folder: Path,
    *,
    options: Options = DEFAULT,
    processes: int | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> FolderRewrite:
    """Return the rewritten form of every Python file and notebook of `folder`; nothing is written.

    A file that cannot be read, or on which a rule fails, does not keep the others from being rewritten:
    it stays as it is, and its problem is in the result.

    Args:
        folder: the folder of the project.
        options: the form of the output.
        processes: how many work at it; by default one for each core.
        progress: is told what is being done.

    Raises:
        UnreadableScriptError: there is no such folder.
    """
    if not folder.is_dir():
        raise UnreadableScriptError(f"{folder}: no such folder", "check the path")
    code = (path for path in files_of(folder) if path.suffix in (".py", SUFFIX))
    # A link is copied as a link, so what it points to is rewritten, if it lies in the folder.
    paths = sorted(path for path in code if path.is_file() and not path.is_symlink())
    contents = {path: path.read_bytes() for path in paths}
    concerned = [path for path in paths if concerns_rules(contents[path])]
    progress(f"reading {len(paths)} files of {folder}")
    project = _project(folder, paths, {path: contents[path] for path in concerned})
    analysis = Analysis(project)
    calls = {path: calls_of_file(analysis, path) for path in concerned}
    jobs = [
        _Job(path.relative_to(folder), path, contents[path], calls[path], options)
        for path in concerned
    ]
    progress(f"rewriting {len(jobs)} files of {folder}")
    files = _in_processes(_rewrite, jobs, processes)
    changed = {folder / file.name: file.after for file in files if file.changed}
    if changed:
        progress(f"checking {len(changed)} rewritten files")
        analysis = Analysis(_project(folder, paths, changed))
        files = _checked(folder, analysis, files, changed, options, processes)
    files = without_answered(files, project, calls)
    files = _with_functions(folder, analysis, files, contents, processes)
    return FolderRewrite(
        folder,
        tuple(files),
        sum(path.suffix != SUFFIX for path in set(paths) - set(concerned)),
        tuple(path.relative_to(folder) for path in paths if path.suffix == SUFFIX),
        in_order(files, project),
    )


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of `folder`, links included, but not what is no source: caches, environments."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if name not in LEFT_OUT and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (here / name for name in sorted(names))


@dataclass(frozen=True)
class _Job:
    name: Path  # in the folder
    path: Path
    data: bytes
    calls: ModuleCalls
    options: Options


def _project(folder: Path, paths: Sequence[Path], contents: Mapping[Path, bytes]) -> Project:
    """Return the project of the scripts, and of those notebooks whose content is given."""
    read = [path for path in paths if path.suffix != SUFFIX or path in contents]
    return Project.of_files(folder, read, contents)


def _rewrite(job: _Job) -> FileRewrite:
    """Rewrite one file; in a process of the pool."""
    try:
        if job.path.suffix == SUFFIX:
            notebook = parse_notebook(job.data, job.path)
            done = rewrite_notebook(notebook, calls=job.calls, options=job.options, check=False)
        else:
            source = parse(job.data, job.path)
            done = rewrite_source(source, calls=job.calls, options=job.options, check=False)
    except MigrateError as error:
        return FileRewrite(job.name, job.data, job.data, problem=str(error))
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        problem = f"{job.name}: internal error ({what}); please report this with the file"
        return FileRewrite(job.name, job.data, job.data, problem=problem)
    return FileRewrite(job.name, job.data, done.data, done.edits, done.findings)


def _check(job: _Job) -> str:
    """Return why the rewritten file does not stand: it does not parse, or would change again."""
    try:
        check = check_notebook if job.path.suffix == SUFFIX else check_stable
        check(job.data, job.path, calls=job.calls, options=job.options)
    except NotStableError as error:
        return str(error)
    except Exception as error:
        return f"{job.name}: the rewritten file cannot be read again ({type(error).__name__})"
    return ""


def _checked(
    folder: Path,
    analysis: Analysis,
    files: Sequence[FileRewrite],
    changed: Mapping[Path, bytes],
    options: Options,
    processes: int | None,
) -> list[FileRewrite]:
    """Return `files` with those as they were that a second run, over the rewritten folder, would change."""
    jobs = [
        _Job(path.relative_to(folder), path, data, calls_of_file(analysis, path), options)
        for path, data in changed.items()
    ]
    problems = dict(
        zip((job.name for job in jobs), _in_processes(_check, jobs, processes), strict=True)
    )
    return [
        FileRewrite(file.name, file.before, file.before, problem=problems[file.name])
        if problems.get(file.name)
        else file
        for file in files
    ]


def _with_functions(
    folder: Path,
    analysis: Analysis,
    files: Sequence[FileRewrite],
    contents: Mapping[Path, bytes],
    processes: int | None,
) -> list[FileRewrite]:
    """Return `files` with the hazards of functions that the steps of other files run.

    A file that concerns no rule may hold such a function; it is added.
    """
    root = folder.resolve()
    left = left_in_functions(
        analysis,
        {path.resolve(): data for path, data in contents.items()},
        {
            root / file.name: [(n.line, n.column, n.rule, n.message) for n in file.findings]
            for file in files
        },
        root,
        lambda work, jobs: _in_processes(work, jobs, processes),
    )
    notes = {
        path.relative_to(root): tuple(Note(o.line, o.column, o.code, o.message) for o in found)
        for path, found in left.items()
        if found
    }
    found = {file.name: file for file in files}
    for name, more in notes.items():
        data = contents.get(folder / name, b"")
        file = found.get(name) or FileRewrite(name, data, data)
        findings = sorted((*file.findings, *more), key=lambda note: (note.line, note.column))
        found[name] = replace(file, findings=tuple(findings))
    return [found[name] for name in sorted(found)]


def _in_processes(
    work: Callable[[Given], Result], jobs: Sequence[Given], processes: int | None
) -> list[Result]:
    """Return what `work` gives for each of `jobs`, in their order."""
    count = min(processes or _cores(), max(1, len(jobs)))
    if count == 1 or (processes is None and len(jobs) < WORTH_A_POOL):
        return [work(job) for job in jobs]
    # Spawned, not forked: the caller may have threads, and torch in it.
    with multiprocessing.get_context("spawn").Pool(count, collect_seldom) as pool:
        return pool.map(work, jobs, chunksize=max(1, min(16, len(jobs) // (4 * count))))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
