"""The program of a job: its framework, its files, how its processes start, and how it resumes.

What the program imports and calls decides. Names are resolved by the analysis that `migrate check` uses.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from migrate.launch.errors import JobError
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import scopes_of
from migrate.model.project.project import Project, SourceModule
from migrate.syntax.source import read, require_this_python

# Entry files of a folder, the first that exists.
ENTRIES = ("__main__.py", "main.py", "train.py", "run.py")
# Environment variables that a job sets for its program.
CHECKPOINTS, DATA = "CHECKPOINTS", "DATA"

_SKIPPED = frozenset(
    {".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache"}
)
_JAX = frozenset({"jax", "flax", "optax", "orbax"})
_STARTS_CHIPS = frozenset(
    {
        *("torch_xla.launch", "torch_xla.distributed.xla_multiprocessing.spawn"),
        *("shims.launch", "shims.launch_script"),
    }
)
_SPAWNS = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
_LOADS = frozenset({"torch.load", "shims.load", "torch_xla.utils.serialization.load"})
_JOINS = frozenset({"jax.distributed.initialize"})


class Framework(StrEnum):
    """The package that drives the TPU."""

    TORCH_XLA = "torch_xla"
    TORCH_TPU = "torch_tpu"
    JAX = "jax"


class Resume(StrEnum):
    """Way in which a program continues after a preemption."""

    SHIMS = "shims.resume"
    ORBAX = "orbax"
    OWN = "its own checkpoints"
    NONE = "not at all"


class ProcessStart(StrEnum):
    """Processes that a host starts."""

    HOST = "one process per host"  # it starts the others itself, or drives all chips
    CHIP = "one process per chip"


@dataclass(frozen=True)
class JobProgram:
    """A program as its source shows it.

    Attributes:
        folder: the folder that is copied, or that holds the script.
        entry: the file that is run, relative to `folder`.
        files: the files to copy, relative to `folder`.
        framework: the package that drives the TPU.
        start: which processes a host starts.
        resume: how the program continues after a preemption.
        shims: whether the program imports `shims`.
        joins_hosts: whether the program connects the hosts of a slice, or its framework does.
        reads: names of environment variables of the job that the program mentions.
        buckets: URLs of buckets in the program's text.
        assumed: what the source does not show for certain, each a line for the user.
    """

    folder: Path
    entry: Path
    files: tuple[Path, ...]
    framework: Framework
    start: ProcessStart
    resume: Resume
    shims: bool
    joins_hosts: bool
    reads: frozenset[str]
    buckets: tuple[str, ...]
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
    framework = _framework(script, imports, calls, project)
    strings = {text for module in project.modules.values() for text in module.strings}
    files = _all_files(folder) if target.is_dir() else _python_files(project, folder)
    resume = _resume(imports, calls)
    return JobProgram(
        folder,
        script.relative_to(folder),
        files,
        framework,
        _start(framework, calls),
        resume,
        "shims" in imports,
        framework is not Framework.JAX or bool(calls & _JOINS),
        frozenset(strings & {CHECKPOINTS, DATA}),
        tuple(sorted(text for text in strings if text.startswith("gs://"))),
        tuple(_assumed(script, framework, resume, imports, calls)),
    )


def _assumed(
    script: Path, framework: Framework, resume: Resume, imports: set[str], calls: set[str]
) -> Iterator[str]:
    """Yield what was concluded from less than an import or a call that shows it."""
    if framework is Framework.TORCH_TPU and not _uses_torch_tpu(imports, calls):
        yield (
            f"{script.name} imports torch only, and a string in it is 'tpu' or 'tpu_dist': it is taken for a "
            "program of torch_tpu"
        )
    if resume is Resume.ORBAX:
        yield f"{script.name} restores by orbax; whether the data's position is restored was not checked"


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


def _framework(script: Path, imports: set[str], calls: set[str], project: Project) -> Framework:
    uses_xla = "torch_xla" in imports
    uses_tpu = _uses_torch_tpu(imports, calls)
    if "torch" in imports and not uses_xla and "shims" not in imports:
        uses_tpu = uses_tpu or any(_names_device(module) for module in project.modules.values())
    if uses_xla and uses_tpu:
        raise JobError(
            f"{script.name} imports torch_xla and torch_tpu, which need different versions of torch",
            "remove one of the two imports",
        )
    if uses_xla and imports & _JAX:
        raise JobError(
            f"{script.name} imports torch_xla and JAX, which need different versions of libtpu",
            "launch the two as separate jobs",
        )
    if uses_tpu:
        return Framework.TORCH_TPU
    if uses_xla or "shims" in imports:
        return Framework.TORCH_XLA
    if imports & _JAX:
        return Framework.JAX
    if "torch" in imports:
        raise JobError(
            f"{script.name} imports torch only, and would train on the CPU of each host",
            f"rewrite it first: migrate rewrite {script.name}",
        )
    raise JobError(
        f"{script.name} imports neither torch_xla, torch_tpu, shims nor jax",
        "name the script that trains, or --entry FILE",
    )


def _uses_torch_tpu(imports: set[str], calls: set[str]) -> bool:
    return "torch_tpu" in imports or any(name.startswith("torch.tpu.") for name in calls)


def _names_device(module: SourceModule) -> bool:
    """Whether a torch program names the device `tpu`: torch_tpu loads itself."""
    return "tpu" in module.strings or "tpu_dist" in module.strings


def _start(framework: Framework, calls: set[str]) -> ProcessStart:
    if framework is Framework.JAX:
        return ProcessStart.HOST
    starters = _STARTS_CHIPS if framework is Framework.TORCH_XLA else _SPAWNS
    return ProcessStart.HOST if calls & starters else ProcessStart.CHIP


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
