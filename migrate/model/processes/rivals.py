"""Frameworks that take the TPU for themselves, in a process that uses torch_xla."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import ModuleScope
from migrate.model.processes.reached import (
    End,
    Import,
    end_of,
    imports_of,
    place_of,
    reached,
)
from migrate.model.project.project import SourceModule

# Packages by the framework whose runtime they start.
FRAMEWORKS = {
    "jax": "jax",
    "jaxlib": "jax",
    "flax": "jax",
    "haiku": "jax",
    "optax": "jax",
    "orbax": "jax",
    "tensorflow": "tensorflow",
}
_SIGNS = re.compile(rb"\b(" + "|".join(FRAMEWORKS).encode() + rb")\b")
# Words in a file that is run as a script.
_PROGRAM = re.compile(rb"__main__|launch|spawn|Process")
# Setting that leaves the TPU to torch_xla.
_ON_CPU = {"jax": re.compile(rb"JAX_PLATFORM|jax_platform"), "tensorflow": re.compile(rb"(?!)")}


@dataclass(frozen=True)
class Rival:
    """Import of a framework that takes the TPU.

    Attributes:
        end: where the import ends, or the call or import of the program that leads to it.
        framework: `jax` or `tensorflow`.
        where: the file or function of the import, if it is in another file of the project; otherwise empty.
        optional: whether the import stands under `try:`.
    """

    end: End
    framework: str
    where: str = ""
    optional: bool = False


@lru_cache(maxsize=2)
def _importing(analysis: Analysis) -> bool:
    """Whether any file of the project mentions such a framework."""
    return any(_SIGNS.search(scope.module.data) for scope in analysis.scopes.values())


def rivals_of(analysis: Analysis, scope: ModuleScope) -> tuple[Rival, ...]:
    """Return the frameworks that running the file imports, each with the first location that leads to it.

    The imports of each imported file, and those in called functions, are followed.
    """
    program = scope.module
    if _PROGRAM.search(program.data) is None or not _importing(analysis):
        return ()
    rivals: dict[str, Rival] = {}
    files: set[Path] = set()
    for running, origin in reached(analysis, [(scope, None)], program.path, scripts={program.path}):
        module = running.module
        files.add(module.path)
        is_program = module is program
        for node, optional in imports_of(running, guard=is_program):
            for framework in _frameworks(node, module, analysis):
                if framework not in rivals or (rivals[framework].optional and not optional):
                    end = end_of(node, module) if is_program or origin is None else origin
                    place = "" if is_program else place_of(running, analysis)
                    rivals[framework] = Rival(end, framework, place, optional)
    modules = analysis.project.modules
    return tuple(
        rival
        for rival in rivals.values()
        if not any(_ON_CPU[rival.framework].search(modules[path].data) for path in files)
    )


def _frameworks(node: Import, module: SourceModule, analysis: Analysis) -> Iterator[str]:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""] if not node.level else []
    for name in names:
        root = name.partition(".")[0]
        if root in FRAMEWORKS and analysis.project.find(module.path, root) is None:
            yield FRAMEWORKS[root]
