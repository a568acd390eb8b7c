"""The program of a job: its framework, its files, how its processes start, and how it resumes.

What the program imports and calls decides. Names are resolved by the analysis that `migrate check` uses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

from migrate.launch.errors import JobError
from migrate.launch.framework import Framework, framework_of, shows_torch_tpu
from migrate.launch.needs import missing_packages, needed_imports
from migrate.launch.pins import pins
from migrate.launch.start import StartStyle, start_style
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import scopes_of
from migrate.model.project.project import Project, SourceModule
from migrate.syntax.source import read, require_this_python

# Entry files of a folder, the first that exists.
ENTRIES = ("__main__.py", "main.py", "train.py", "run.py")
# Environment variables that a job sets for its program.
CHECKPOINTS, DATA = "CHECKPOINTS", "DATA"
# Further packages of a program, in its folder.
REQUIREMENTS = "requirements.txt"

_SKIPPED = frozenset(
    {".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache"}
)
_LOADS = frozenset({"torch.load", "shims.load", "torch_xla.utils.serialization.load"})


class Resume(StrEnum):
    """Way in which a program continues after a preemption."""

    SHIMS = "shims.resume"
    ORBAX = "orbax"
    OWN = "its own checkpoints"
    NONE = "nothing"

    @property
    def sentence(self) -> str:
        """Return how the program resumes, as words after its name."""
        return "starts over" if self is Resume.NONE else f"resumes by {self}"


@dataclass(frozen=True)
class JobProgram:
    """A program as its source shows it.

    Attributes:
        folder: the folder that is copied, or that holds the script.
        entry: the file that is run, relative to `folder`.
        files: the files to copy, relative to `folder`.
        framework: the package that drives the TPU.
        style: how its processes start on each host.
        resume: how the program continues after a preemption.
        reads: names of environment variables of the job that the program mentions.
        buckets: URLs of buckets in the program's text.
        imports: top-level packages that the program imports.
        assumed: what the source does not show for certain, each a line for the user.
    """

    folder: Path
    entry: Path
    files: tuple[Path, ...]
    framework: Framework
    style: StartStyle
    resume: Resume
    reads: frozenset[str]
    buckets: tuple[str, ...]
    imports: frozenset[str]
    assumed: tuple[str, ...]


def read_program(target: Path, entry: str | None = None) -> JobProgram:
    """Return what a script or folder shows.

    Args:
        target: a script, or a folder with the program.
        entry: the file of the folder that is run; None: the usual names.

    Raises:
        JobError: there is no such program, or it drives no TPU.
    """
    folder, script = _located(target, entry)
    require_this_python(read(script).data, script)
    project = Project.of_script(script, root=folder)
    analysis = Analysis(project)
    imports = {name for module in project.modules.values() for name in _imported(module)}
    calls = set(_called(analysis))
    framework = framework_of(script, imports, calls, project)
    strings = {text for module in project.modules.values() for text in module.strings}
    files = _all_files(folder) if target.is_dir() else _python_files(project, folder)
    resume = _resume(imports, calls)
    return JobProgram(
        folder,
        script.relative_to(folder),
        files,
        framework,
        start_style(framework, calls, strings, script),
        resume,
        frozenset(strings & {CHECKPOINTS, DATA}),
        tuple(sorted(text for text in strings if text.startswith("gs://"))),
        frozenset(imports),
        (
            *_assumed(script, framework, resume, imports, calls),
            *_missing(project, files, framework, imports, folder),
        ),
    )


def _assumed(
    script: Path, framework: Framework, resume: Resume, imports: set[str], calls: set[str]
) -> Iterator[str]:
    """Yield what was concluded from less than an import or a call that shows it."""
    if framework is Framework.TORCH_TPU and not shows_torch_tpu(imports, calls):
        yield (
            f"{script.name} does not import torch_tpu, and names its device 'tpu' or its group 'tpu_dist': "
            "it is taken for a program of torch_tpu"
        )
    if resume is Resume.ORBAX and not _is_of_migrate_train(script):
        yield f"{script.name} restores by orbax; whether the data's position is restored was not checked"


def _is_of_migrate_train(script: Path) -> bool:
    """Whether a program has the checkpoints of `migrate train`, which hold the data's position."""
    name = "checkpoints.py"
    written = resources.files("migrate") / "train" / "write" / "program" / name
    path = script.with_name(name)
    return path.is_file() and path.read_bytes() == written.read_bytes()


def _missing(
    project: Project,
    files: tuple[Path, ...],
    framework: Framework,
    imports: set[str],
    folder: Path,
) -> Iterator[str]:
    """Yield a line if hosts would not have a package of the program."""
    trees = [module.tree for module in project.modules.values()]
    needed = {name for tree in trees for name in needed_imports(tree)}
    exact = pins(framework, imports)
    missing = missing_packages(files, needed, exact, folder / REQUIREMENTS)
    if missing:
        yield (
            f"the program imports {', '.join(missing)}, and no host would have it: name it in "
            f"{REQUIREMENTS} beside the program; a file of your own: copy it beside the program, or launch "
            "the folder with --entry"
        )


def _located(target: Path, entry: str | None) -> tuple[Path, Path]:
    """Return the folder and the script of a program."""
    if target.is_file():
        if entry:
            raise JobError(f"--entry {entry} with the script {target}", "leave out --entry")
        return target.resolve().parent, target.resolve()
    if not target.is_dir():
        raise JobError(f"{target} is not a file or folder", "name a script or a program's folder")
    folder = target.resolve()
    names = (entry,) if entry else ENTRIES
    for name in names:
        if (folder / name).is_file():
            return folder, folder / name
    raise JobError(f"{target} has no {' or '.join(names)}", "name the file to run: --entry FILE")


def _imported(module: SourceModule) -> Iterator[str]:
    """Yield the top-level packages that a file imports."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _called(analysis: Analysis) -> Iterator[str]:
    """Yield the dotted names of the external functions that the program calls, and `.method` of others."""
    for module in analysis.project.modules.values():
        for call, scope in analysis.calls_in(analysis.scopes.get(module.path) or scopes_of(module)):
            yield from analysis.evaluator.externals(call.func, scope)
            if isinstance(call.func, ast.Attribute):
                yield f".{call.func.attr}"


def _resume(imports: set[str], calls: set[str]) -> Resume:
    if "shims.resume" in calls:
        return Resume.SHIMS
    if "orbax" in imports and ".restore" in calls:
        return Resume.ORBAX
    if any(name.startswith("flax.training.checkpoints.restore") for name in calls):
        return Resume.OWN
    if calls & _LOADS and ".load_state_dict" in calls:
        return Resume.OWN
    return Resume.NONE


def _python_files(project: Project, folder: Path) -> tuple[Path, ...]:
    """Return the script and the local modules that it imports, relative to its folder."""
    return tuple(sorted(path.relative_to(folder) for path in project.modules))


def _all_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder, without version control, environments and caches."""
    return tuple(
        sorted(
            path.relative_to(folder)
            for path in folder.rglob("*")
            if path.is_file() and not _SKIPPED.intersection(path.relative_to(folder).parts)
        )
    )
