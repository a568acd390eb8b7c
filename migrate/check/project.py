"""Check every Python file and notebook in folders, on all cores if there are many."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from migrate.check.config import Config
from migrate.check.file import check_file, check_readable, not_checked
from migrate.check.finding import Finding
from migrate.check.followed import CheckJob, Followed
from migrate.check.hazard import Severity
from migrate.check.prescan import may_hold_hazards
from migrate.check.project_tests import is_test
from migrate.check.repeated import without_repetition
from migrate.counts import many
from migrate.model.facts import AnalyzedProject
from migrate.progress import Progress, no_progress
from migrate.syntax.interpreter import deep, seldom_collected
from migrate.syntax.notebook.text import SUFFIX, read_notebook
from migrate.syntax.source import UnreadableScriptError
from migrate.written import RECORD

# Fewer files are checked before other processes have started.
FEW = 20
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "venv", "build"})


@dataclass(frozen=True)
class Checked:
    """Hazards of all checked files.

    Args:
        files: the number of files, with those that were read because a step leads into them.
        findings: the hazards.
        in_tests: hazards in the project's tests. They do not fail the check, as tests do not run on a TPU.
        fails_on: lowest severity that fails the check.
        imported: the number of those files that nobody named, if only files were named.
        beside: the number of further errors in imported files, which are checked only where steps and
            loaders of the named files lead into them; empty if a folder was named.
        unread: the number of imported files in which such errors were not looked for: their folder is large.
        folder: the folder around the named and the imported files.
        rewritten: content of each file that `migrate rewrite` changes, with the rewritten content.
    """

    files: int
    findings: tuple[Finding, ...]
    in_tests: tuple[Finding, ...] = ()
    fails_on: Severity = Severity.ERROR
    rewritten: Mapping[Path, tuple[str, str]] = field(default_factory=dict)
    imported: int = 0
    beside: Mapping[Path, int] = field(default_factory=dict)
    unread: int = 0
    folder: Path = Path()

    @property
    def failed(self) -> bool:
        """Whether a finding outside of tests fails the check."""
        return any(finding.severity.reaches(self.fails_on) for finding in self.findings)


@dataclass(frozen=True)
class Hazards:
    """Hazards of files and folders.

    Args:
        files: the number of checked files.
        findings: each hazard.
        imported: the files that the named files import and nobody named; none if a folder was named.
        analyzed: the projects of the files, analyzed.
    """

    files: int
    findings: list[Finding]
    imported: tuple[Path, ...] = ()
    analyzed: tuple[AnalyzedProject, ...] = ()


def check_paths(paths: Sequence[Path], config: Config, progress: Progress = no_progress) -> Checked:
    """Return the hazards of the files `paths` and of the Python files in the folders among them.

    Findings that a file repeats are combined into one. Findings in tests are listed separately.

    Raises:
        UnreadableScriptError, NotUtf8Error, InvalidNotebookError: as `hazards_of`.
    """
    hazards = hazards_of(paths, config, progress)
    return counted(hazards.files, hazards.findings, paths, config)


@seldom_collected()
@deep
def hazards_of(paths: Sequence[Path], config: Config, progress: Progress = no_progress) -> Hazards:
    """Return the number of checked files, and each hazard in them.

    Steps of these files are followed into the local modules that they import. Functions of these modules
    that a step runs are checked too.

    Raises:
        UnreadableScriptError: a path does not exist or cannot be read. Below a folder this is a finding.
        NotUtf8Error, InvalidNotebookError: a path is a notebook that cannot be read.
    """
    named = {path: list(python_files(path, config)) for path in paths}
    files = list(dict.fromkeys(file for group in named.values() for file in group))
    worth = [file for file in files if _worth_parsing(file)]
    # Nothing is reported about named files that were not read.
    others = [file for file in files if file in named and file not in worth]
    if not worth and not others:
        return Hazards(len(files), list(_unreadable(others, config)))

    def wanted(path: Path) -> bool:
        return not is_excluded(path, config)

    if len(worth) > FEW:
        progress(f"reading {many(len(worth), 'file')}")
    with Followed(worth, named, _processes(worth)) as followed:
        jobs = followed.jobs(wanted)
        others += [path for path in followed.unread(wanted) if path not in others]
        reporter = progress if len(worth) > FEW else no_progress
        work = partial(_check, config=config, named=frozenset(named))
        findings = [
            *_unreadable(others, config),
            *(
                finding
                for of_file in followed.workers.run(work, jobs, reporter, "checking")
                for finding in of_file
            ),
        ]
        imported = [] if any(path.is_dir() for path in paths) else followed.imported(wanted)
    read = len(files) + sum(not job.known.whole for job in jobs)
    beside = tuple(filter(_worth_parsing, imported))
    return Hazards(read, findings, beside, tuple(followed.analyzed))


def counted(
    files: int, findings: Iterable[Finding], named: Sequence[Path], config: Config
) -> Checked:
    """Combine findings that a file repeats, and list findings in tests separately.

    Args:
        files: number of checked files.
        findings: all findings.
        named: files and folders that the user named.
        config: configuration with the lowest severity that fails the check.
    """
    by_path: dict[Path, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(finding.path, []).append(finding)
    tests = {path for path in by_path if is_test(path, named)}
    kept = {path: without_repetition(of_file) for path, of_file in by_path.items()}
    return Checked(
        files,
        tuple(
            finding for path, of_file in kept.items() if path not in tests for finding in of_file
        ),
        tuple(finding for path, of_file in kept.items() if path in tests for finding in of_file),
        config.fails_on,
        imported=files - len(set(named)) if all(path.is_file() for path in named) else 0,
    )


def _unreadable(files: Sequence[Path], config: Config) -> tuple[Finding, ...]:
    return tuple(finding for file in files for finding in check_readable(file, config))


def _check(job: CheckJob, config: Config, named: Set[Path]) -> tuple[Finding, ...]:
    try:
        return check_file(job.path, config, job.known)
    except UnreadableScriptError as error:
        if job.path in named:
            raise
        # One file of many, such as a broken link. The other files are checked.
        return not_checked(job.path, error, config, Severity.WARNING)


def _worth_parsing(file: Path) -> bool:
    try:
        return may_hold_hazards(file.read_bytes())
    except OSError:
        return True  # the check itself reports the error


def _processes(files: Sequence[Path]) -> int:
    if len(files) <= FEW:
        return 1
    return min(len(os.sched_getaffinity(0)), max(1, len(files) // FEW))


def python_files(path: Path, config: Config) -> Iterator[Path]:
    """Yield `path` itself if it is a file, else the Python files and notebooks below it, sorted.

    Hidden folders, virtual environments, programs that `migrate train` or `migrate port` wrote, and folders
    that the configuration excludes are skipped, unless the user names them.

    Raises:
        UnreadableScriptError: `path` does not exist.
        NotUtf8Error, InvalidNotebookError: `path` itself is a notebook that cannot be read.
    """
    if not path.exists():
        raise UnreadableScriptError(f"{path}: no such file or folder", "check the path")
    if not path.is_dir():
        if path.suffix == SUFFIX:
            read_notebook(path)
        yield path
        return
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not _skipped(here / name, config))
        for name in sorted(names):
            if name.endswith((".py", SUFFIX)) and not is_excluded(here / name, config):
                yield here / name


def _skipped(folder: Path, config: Config) -> bool:
    hidden = folder.name.startswith(".") or folder.name in SKIPPED
    other = (folder / "pyvenv.cfg").exists() or (folder / RECORD).is_file()
    return hidden or other or is_excluded(folder, config)


def is_excluded(path: Path, config: Config, folder: Path | None = None) -> bool:
    """Whether a pattern matches the name of `path`, or its path from the folder of the configuration.

    Args:
        path: a file or a folder.
        config: the patterns.
        folder: folder above `path`. The folders between the two are tested too. None: only `path` is.
    """
    if not config.exclude:
        return False
    if folder is not None:
        between = (above for above in path.parents if above != folder and folder in above.parents)
        return any(is_excluded(part, config) for part in (path, *between))
    try:
        relative = path.resolve().relative_to(config.root).as_posix()
    except ValueError:
        relative = path.as_posix()
    return any(
        fnmatch.fnmatch(candidate, pattern.rstrip("/"))
        for pattern in config.exclude
        for candidate in (path.name, relative)
    )
