"""Frameworks that take the TPU for themselves, in a process that uses torch_xla."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from migrate.reading.calls.analysis import Analysis
from migrate.reading.calls.scopes import Function, ModuleScope, Scope
from migrate.reading.project.project import Module
from migrate.reading.replicas.early_ranks import early_nodes

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
# Leaves the TPU to torch_xla.
_ON_CPU = {"jax": re.compile(rb"JAX_PLATFORM|jax_platform"), "tensorflow": re.compile(rb"(?!)")}


@dataclass(frozen=True)
class Rival:
    """An import of a framework that takes the TPU.

    Attributes:
        line: the line of the program that imports the framework, or leads to the import.
        framework: `jax` or `tensorflow`.
        where: the file and line of the import where another file of the project has it; else empty.
        optional: whether the import stands under `try:`.
    """

    line: int
    framework: str
    where: str = ""
    optional: bool = False


@lru_cache(maxsize=2)
def _importing(analysis: Analysis) -> bool:
    """Whether any file of the project mentions such a framework."""
    return any(_SIGNS.search(scope.module.data) for scope in analysis.scopes.values())


def rivals_of(analysis: Analysis, scope: ModuleScope) -> tuple[Rival, ...]:
    """Return the frameworks that running the file imports, each where the file first leads to it.

    Followed are the imports of each file that is read, and those in the functions that are called.
    """
    if not _importing(analysis):
        return ()
    found: dict[str, Rival] = {}
    seen: set[Path | Function] = {scope.module.path}
    files: set[Path] = set()
    # What runs: a file that is read or a function, and the line of the program that leads to it.
    waiting: deque[tuple[ModuleScope | Function, int]] = deque([(scope, 0)])
    while waiting:
        running, origin = waiting.popleft()
        module = running.module
        files.add(module.path)
        is_program = module is scope.module
        for node, optional in _statements(running, is_program):
            line = node.lineno if is_program else origin
            for framework in _frameworks(node, module, analysis):
                place = "" if is_program else f"{_name(module, analysis)}:{node.lineno}"
                rival = Rival(line, framework, place, optional)
                if framework not in found or (found[framework].optional and not optional):
                    found[framework] = rival
            for path in analysis.project.imported_by(module.path, [node]):
                if path not in seen and path in analysis.scopes:
                    seen.add(path)
                    waiting.append((analysis.scopes[path], line))
        read_only = isinstance(running, ModuleScope) and not is_program
        for root in [running.region] if read_only else running.roots:
            for region in analysis.regions(root):
                for call, at in region.calls:
                    for function in _run_by(call, at, analysis):
                        if function not in seen:
                            seen.add(function)
                            waiting.append((function, call.lineno if is_program else origin))
    modules = analysis.project.modules
    return tuple(
        rival
        for rival in found.values()
        if not any(_ON_CPU[rival.framework].search(modules[path].data) for path in files)
    )


def _run_by(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that a call runs, and those that it is given: `torch_xla.launch(main)`."""
    yield from analysis.running[call].functions
    for arg in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(arg, ast.Name | ast.Attribute):
            values = analysis.evaluator.values(arg, scope)
            yield from (value for value in values if isinstance(value, Function))


def _statements(
    running: ModuleScope | Function, is_program: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield the import statements that run with a file or a function, and whether `try:` is around them."""
    tree: ast.AST = running.module.tree
    if isinstance(running, Function):
        tree = _definition(running) or ast.Module([], [])
    optional = {
        id(node)
        for attempt in ast.walk(tree)
        if isinstance(attempt, ast.Try)
        for statement in attempt.body
        for node in ast.walk(statement)
    }
    for node in early_nodes(tree, guard=is_program):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, id(node) in optional


def _definition(function: Function) -> ast.AST | None:
    """Return the tree of a function; None for a lambda."""
    return next(
        (
            node
            for node in function.module.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.lineno == function.line
        ),
        None,
    )


def _frameworks(
    node: ast.Import | ast.ImportFrom, module: Module, analysis: Analysis
) -> Iterator[str]:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [node.module or ""] if not node.level else []
    for name in names:
        root = name.partition(".")[0]
        if root in FRAMEWORKS and analysis.project.find(module.path, root) is None:
            yield FRAMEWORKS[root]


def _name(module: Module, analysis: Analysis) -> str:
    """Return the file as it is named in the project."""
    root = analysis.project.root
    inside = root is not None and module.path.is_relative_to(root)
    return str(module.path.relative_to(root)) if inside and root is not None else module.path.name
