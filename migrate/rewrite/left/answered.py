"""Findings in a module that are obsolete because rewritten scripts of the project set its variables."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from migrate.model.calls.order import closure
from migrate.model.calls.scopes import is_main_guard
from migrate.model.facts import ModuleCalls
from migrate.model.project.project import Project, SourceModule
from migrate.rewrite.results import Note
from migrate.rewrite.rules.ranks.rank_environment import RankEnvironmentRule
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.rewrite.results import FileRewrite


def without_answered(
    files: Sequence[FileRewrite], project: Project, calls: Mapping[Path, ModuleCalls]
) -> list[FileRewrite]:
    """Return `files` without the findings on RANK in modules whose scripts set it in each replica.

    A module may read its rank from the environment. The rewrite gives the scripts that import it a launcher
    that sets the rank. The finding stays if a script without a launcher calls the function that reads, and
    if the read fails without the variable: `os.environ["RANK"]` without a test.

    Args:
        files: the rewritten files of a folder.
        project: the project of the rewritten files, with their imports.
        calls: functions that their calls run, by file.
    """
    root = project.root or Path()
    known = {path.resolve(): of_file for path, of_file in calls.items()}
    result = []
    for file in files:
        path = root / file.name
        if all(note.rule != RankEnvironmentRule.name for note in file.findings):
            result.append(file)
            continue
        scripts = {
            script
            for script in _above(path, project.importers)
            if _is_script(project.modules[script])
        }
        started = {script for script in scripts if _sets_rank(project.modules[script])}
        others = [known.get(script) for script in scripts - started]
        kept = tuple(
            note
            for note in file.findings
            if note.rule != RankEnvironmentRule.name
            or not started
            or _is_script(project.modules[path])
            or (
                any(_runs(path, note, project, runs) for runs in others)
                and _fails_unset(path, note, project)
            )
        )
        result.append(replace(file, findings=kept))
    return result


def _is_script(module: SourceModule) -> bool:
    """Whether a file has code that runs only if it is started as a program."""
    return any(isinstance(node, ast.If) and is_main_guard(node.test) for node in module.tree.body)


def _sets_rank(module: SourceModule) -> bool:
    """Whether a file assigns `os.environ["RANK"]`."""
    for node in module.nodes:
        match node:
            case ast.Assign(
                targets=[
                    ast.Subscript(
                        value=ast.Attribute(attr="environ") | ast.Name(id="environ"),
                        slice=ast.Constant(value="RANK"),
                    )
                ]
            ):
                return True
    return False


def _above(path: Path, importers: Mapping[Path, set[Path]]) -> set[Path]:
    """Return the files that import `path`, directly or through others."""
    return set(closure([path], lambda path: importers.get(path, ()))) - {path}


def _runs(path: Path, note: Note, project: Project, calls: ModuleCalls | None) -> bool:
    """Whether one of `calls` runs the function of `path` that contains `note`."""
    if calls is None:
        return False
    return any(
        function.path == path and function.line <= note.line <= _end(path, function.line, project)
        for functions in calls.definitions.values()
        for function in functions
    )


def _fails_unset(path: Path, note: Note, project: Project) -> bool:
    """Whether the read of a variable at `note` fails if it is not set, without a test before it."""
    module = project.modules[path]
    here = [
        node
        for node in module.nodes
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.lineno == note.line
        and module.column(note.line, node.slice.col_offset) + 1 == note.column
    ]
    if not here:
        return False  # `os.environ.get(…)`, `"RANK" in os.environ`
    name = here[0].slice
    assert isinstance(name, ast.Constant)
    functions = {node.name: node for node in module.nodes if isinstance(node, ast.FunctionDef)}
    for node in module.nodes:
        if isinstance(node, ast.If | ast.IfExp) and node.test.lineno <= note.line:
            inside = node.lineno <= note.line <= (node.end_lineno or 0)
            if inside and _asks(node.test, name.value, functions):
                return False
    return True


def _asks(test: ast.expr, name: object, functions: Mapping[str, ast.FunctionDef]) -> bool:
    """Whether a test names the variable, or calls a function of the file that does."""
    roots: list[ast.AST] = [test]
    for call in walk(test):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            roots += [functions[call.func.id]] if call.func.id in functions else []
    return any(
        isinstance(node, ast.Constant) and node.value == name
        for root in roots
        for node in walk(root)
    )


def _end(path: Path, line: int, project: Project) -> int:
    """Return the last line of the function that begins at `line`."""
    for node in project.modules[path].nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno == line:
            return node.end_lineno or line
    return line
