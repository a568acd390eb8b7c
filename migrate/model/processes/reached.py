"""Code that runs in one process or thread: functions that are called, files that are imported."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Set
from pathlib import Path

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import Function, ModuleScope, Scope
from migrate.model.processes.early_ranks import early_nodes
from migrate.model.project.project import SourceModule
from migrate.syntax.walk_ast import walk

# Line and column where a call or an import ends.
End = tuple[int, int]
Running = ModuleScope | Function
Import = ast.Import | ast.ImportFrom


def end_of(node: ast.expr | ast.stmt, module: SourceModule) -> End:
    """Return the line and column where `node` ends."""
    line, offset = node.end_lineno or 0, node.end_col_offset or 0
    return line, module.column(line, offset)


# Names under which scripts offer frameworks as a choice.
CHOICES = frozenset({"jax", "flax", "tensorflow", "tf", "keras"})


def reached(
    analysis: Analysis,
    starts: Iterable[tuple[Running, End | None]],
    program: Path,
    *,
    scripts: Set[Path] = frozenset(),
    read: Set[Path] = frozenset(),
) -> Iterator[tuple[Running, End | None]]:
    """Yield the files and functions that run, the nearest first, each with its cause.

    Args:
        analysis: the project.
        starts: the files and functions that run first, each with the call or import that leads to it.
        program: the file whose calls and imports are named as the cause of the rest.
        scripts: the files whose main guard counts.
        read: the files that were imported before.
    """
    seen: set[Path | Function] = {*read}
    waiting: deque[tuple[Running, End | None]] = deque()
    for start, leads in starts:
        seen.add(start if isinstance(start, Function) else start.module.path)
        waiting.append((start, leads))
    while waiting:
        running, origin = waiting.popleft()
        yield running, origin
        module = running.module
        here = module.path == program
        for node, _ in imports_of(running, guard=module.path in scripts):
            for path in analysis.project.imported_by(module.path, [node]):
                if path not in seen and path in analysis.scopes:
                    seen.add(path)
                    by = end_of(node, module) if here else origin
                    waiting.append((analysis.scopes[path], by))
        for call, scope in calls_of(running, analysis, guard=module.path in scripts):
            for function in _run_by(call, scope, analysis):
                if function not in seen:
                    seen.add(function)
                    waiting.append((function, end_of(call, module) if here else origin))


def calls_of(
    running: Running, analysis: Analysis, *, guard: bool
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that run with a file or a function."""
    read_only = isinstance(running, ModuleScope) and not guard
    for root in [running.region] if read_only else running.roots:
        for region in analysis.regions(root):
            yield from region.calls


def imports_of(running: Running, *, guard: bool) -> Iterator[tuple[Import, bool]]:
    """Yield the import statements that run with a file or a function, and whether each is optional.

    An import is optional under `try:`, and if a test asks for a framework: `if backend == "jax":`.
    """
    module = running.module
    tree: ast.AST = module.tree
    if isinstance(running, Function):
        definition = running.definition  # None for a lambda
        if definition is None:
            return
        end = definition.end_lineno or definition.lineno
        if not any(definition.lineno <= line <= end for line in module.import_lines):
            return
        tree = definition
    imports = [
        node
        for node in early_nodes(tree, guard=guard)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    optional = _optional(tree) if imports else set()
    for node in imports:
        yield node, id(node) in optional


def _optional(tree: ast.AST) -> set[int]:
    """Return the ids of the nodes under `try:`, or under a test for a framework."""
    optional: set[int] = set()
    for node in walk(tree):
        if isinstance(node, ast.Try) or (
            isinstance(node, ast.If) and _asks_for_framework(node.test)
        ):
            optional.update(id(below) for statement in node.body for below in walk(statement))
    return optional


def _asks_for_framework(test: ast.expr) -> bool:
    """Whether `test` compares a choice with the name of a framework: `backend == "jax"`."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq | ast.In):
        return False
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in CHOICES
        for part in walk(test)
    )


def place_of(running: Running, analysis: Analysis) -> str:
    """Return the name of a file in the project, or of a function with its file: `load (data.py)`."""
    root, path = analysis.project.root, running.module.path
    inside = root is not None and path.is_relative_to(root)
    name = str(path.relative_to(root)) if inside and root is not None else path.name
    return f"{running.name} ({name})" if isinstance(running, Function) else name


def _run_by(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that a call runs or gets as arguments: `torch_xla.launch(main)`."""
    yield from analysis.running[call].functions
    for arg in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(arg, ast.Name | ast.Attribute):
            values = analysis.evaluator.values(arg, scope)
            yield from (value for value in values if isinstance(value, Function))
