"""The pipeline of `migrate launch`: read, check, write, and let the launcher's parser check."""

from __future__ import annotations

import difflib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from migrate.launch.check import Validation, check_files, check_ours
from migrate.launch.errors import JobError
from migrate.launch.explain import Meaning, explain
from migrate.launch.folder import PROGRAM, WHEELS, shared_files
from migrate.launch.job import TrainingJob, check_request, output_folder
from migrate.launch.launchers import LAUNCHERS
from migrate.launch.launchers.launcher import Commands, JobFile, Launcher
from migrate.launch.program import REQUIREMENTS, read_program
from migrate.launch.request import LaunchRequest
from migrate.launch.wheel import write_wheel


@dataclass(frozen=True)
class WrittenJob:
    """A job that was written.

    Attributes:
        job: the job.
        launcher: its launcher.
        folder: its folder.
        files: its text files, the launcher's first.
        commands: what to run in the folder.
        validation: the check by the launcher's parser; None: it was not asked for.
    """

    job: TrainingJob
    launcher: Launcher
    folder: Path
    files: tuple[JobFile, ...]
    commands: Commands
    validation: Validation | None

    def meanings(self) -> dict[str, list[Meaning]]:
        """Return the meaning of each line, by file."""
        return {file.name: list(explain(file)) for file in self.files}


def launch(
    request: LaunchRequest,
    *,
    check: bool = False,
    python: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> WrittenJob:
    """Write a job, and return it.

    Args:
        request: the options.
        check: whether the launcher's own parser checks the result.
        python: an interpreter that has the launcher's package; None: this one.
        progress: takes a line before the launcher's parser is asked, which takes seconds.

    Raises:
        JobError: options that do not go together, or a program that cannot be launched.
        InvalidJobError: the launcher's parser refuses the result.
    """
    launcher = launcher_named(request.launcher)
    program = read_program(request.target, request.entry)
    job = check_request(request, program)
    launcher.check(job)
    output = output_folder(request)
    files = (*launcher.files(job), *shared_files(job, launcher))
    output.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        _write(part, job, files)
        validation = None
        if check:
            progress(f"asking {launcher.title}'s own parser")
            validation = check_files(job, part, python)
        else:
            check_ours(job, part)
        if output.is_dir():
            shutil.rmtree(output)
        part.chmod(0o755)
        part.rename(output)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return WrittenJob(job, launcher, output, files, launcher.commands(job), validation)


def launcher_named(name: str) -> Launcher:
    """Return the launcher of a name.

    Raises:
        JobError: there is none.
    """
    if name not in LAUNCHERS:
        near = difflib.get_close_matches(name, LAUNCHERS, len(LAUNCHERS), 0.0)
        raise JobError(f"--with {name}: no such launcher", f"one of {', '.join(near)}")
    return LAUNCHERS[name]


def _write(folder: Path, job: TrainingJob, files: tuple[JobFile, ...]) -> None:
    for file in files:
        path = folder / file.name
        path.write_text(file.text)
        if path.suffix == ".sh":
            path.chmod(0o755)
    (folder / WHEELS).mkdir()
    write_wheel(folder / WHEELS)
    program = job.program
    output = job.request.output.resolve()
    for name in (*program.files, *_beside(program.folder, program.files)):
        source = program.folder / name
        if output in source.parents or folder.resolve() in source.parents:
            continue  # an earlier job in the program's folder
        target = folder / PROGRAM / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _beside(folder: Path, files: tuple[Path, ...]) -> list[Path]:
    """Return the requirements of a script, if they lie beside it."""
    path = Path(REQUIREMENTS)
    return [path] if (folder / path).is_file() and path not in files else []
