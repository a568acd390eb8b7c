"""Generators of a project that count what they yield: `yield step, batch`, as `enumerate` does."""

from __future__ import annotations

import ast
from functools import lru_cache

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import Scope
from migrate.model.project.project import SourceModule
from migrate.syntax.walk_ast import walk


@lru_cache(maxsize=2)
def counting_generators(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions whose every `yield` is a pair that begins with a counter."""
    scopes: set[Scope] = set()
    for top in analysis.scopes.values():
        if b"yield" not in top.module.data:
            continue
        counting = _lines(top.module)
        scopes.update(function for function in top.functions if function.line in counting)
    return frozenset(scopes)


def _lines(module: SourceModule) -> set[int]:
    """Return the lines of the functions of a file that yield pairs with a counter in front."""
    return {
        node.lineno for node in module.nodes if isinstance(node, ast.FunctionDef) and _counts(node)
    }


def _counts(function: ast.FunctionDef) -> bool:
    inside = list(walk(function))
    yielded = [node.value for node in inside if isinstance(node, ast.Yield)]
    if not yielded or any(isinstance(node, ast.YieldFrom) for node in inside):
        return False
    counters = {name for node in inside for name in _counters(node)}
    return all(
        isinstance(value, ast.Tuple)
        and len(value.elts) == 2
        and isinstance(value.elts[0], ast.Name)
        and value.elts[0].id in counters
        for value in yielded
    )


def _counters(node: ast.AST) -> list[str]:
    """Return the names that a loop binds to a sequence number, or that a statement counts up."""
    if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call):
        return []
    name = ast.unparse(node.iter.func).rpartition(".")[2]
    if name in ("range", "trange") and isinstance(node.target, ast.Name):
        return [node.target.id]
    target = node.target
    if (
        name == "enumerate"
        and isinstance(target, ast.Tuple)
        and isinstance(target.elts[0], ast.Name)
    ):
        return [target.elts[0].id]
    return []
