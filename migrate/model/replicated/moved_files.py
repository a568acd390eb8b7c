"""Files that the code renames, removes or copies after it has saved them: by one replica, as the save."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from migrate.catalogue.words import SAFETENSORS_SAVES, TORCH_SAVES
from migrate.model.calls.callers import all_first_attributes
from migrate.model.calls.rank_tests import is_for_first, last_part, parents
from migrate.model.calls.scopes import ModuleScope, Scope
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

SAVES = TORCH_SAVES | SAFETENSORS_SAVES | {"shims.save"}
# Functions that change a file: its name, or what else holds its contents.
CHANGES = frozenset(
    {
        *(f"os.{name}" for name in ("link", "remove", "rename", "renames", "replace", "symlink")),
        "os.unlink",
        *(f"shutil.{name}" for name in ("copy", "copy2", "copyfile", "move")),
    }
)
# Methods of a path that do so.
METHODS = frozenset({"rename", "replace", "unlink"})
PATHS = frozenset({"f", "file_or_path", "filename", "path"})


def moved_files(analysis: Analysis, top: ModuleScope) -> dict[ast.stmt, ast.Call]:
    """Return the statements of a file that change a file saved before, each with the last such save.

    Statements that only the first replica runs, by a test of their own, are left out.
    """
    changes: dict[ast.stmt, ast.Call] = {}
    for call, scope in analysis.calls_in(top):
        path = _path(call)
        if path is None or not analysis.evaluator.externals(call.func, scope) & SAVES:
            continue
        for statement in _after(call, top):
            if _changes(statement, ast.dump(path), scope, analysis):
                changes[statement] = call
    return changes


def _path(call: ast.Call) -> ast.expr | None:
    """Return the path that a save gets."""
    if not last_part(call.func).startswith("save"):
        return None
    if len(call.args) > 1 and not any(isinstance(arg, ast.Starred) for arg in call.args[:2]):
        return call.args[1]
    return next((keyword.value for keyword in call.keywords if keyword.arg in PATHS), None)


def _after(call: ast.Call, top: ModuleScope) -> Iterator[ast.stmt]:
    """Yield the statements that run after `call` in its block, and after a `with` or `try` around it."""
    above = parents(top.module)
    node: ast.AST = call
    while not isinstance(node, ast.stmt):
        if (outer := above.get(node)) is None:
            return
        node = outer
    while (around := above.get(node)) is not None:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(around, name, None)
            if isinstance(block, list) and any(statement is node for statement in block):
                numbers = [number for number, item in enumerate(block) if item is node]
                yield from block[numbers[0] + 1 :]
        if not isinstance(around, ast.With | ast.Try):
            return
        node = around


def _changes(statement: ast.stmt, path: str, scope: Scope, analysis: Analysis) -> bool:
    """Whether `statement` only changes the file `path`, perhaps below a condition."""
    match statement:
        case ast.Expr(value=ast.Call() as call):
            parts: Sequence[ast.expr] = call.args
            if not analysis.evaluator.externals(call.func, scope) & CHANGES:
                if not isinstance(call.func, ast.Attribute) or call.func.attr not in METHODS:
                    return False
                parts = [call.func.value]
            return any(ast.dump(node) == path for part in parts for node in walk(part))
        case ast.If(test=test, body=body, orelse=[]):
            if is_for_first(test, all_first_attributes(analysis)):
                return False
            return all(_changes(part, path, scope, analysis) for part in body)
    return False
