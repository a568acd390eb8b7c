"""Result of a cached forward: new entries of a cache, put into a list one after the other."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from converters.graph.caches import CACHE_KIND
from converters.graph.expression import call, code
from converters.graph.writing.holes import fill


def gathered(body: Sequence[ast.stmt], result: ast.expr) -> list[ast.stmt]:
    """Statements with the new cache of the result as a list that the calls of the layers append to."""
    statements = list(body)
    parts = result.elts if isinstance(result, ast.Tuple) else [result]
    for part in parts:
        if not isinstance(part, ast.Name):
            continue
        lists = [
            each.value
            for each in statements
            if isinstance(each, ast.Assign) and _target(each) == part.id
        ]
        if len(lists) == 1 and isinstance(lists[0], ast.List):
            statements = _appended(statements, part.id, lists[0])
    return statements


def _target(statement: ast.stmt) -> str:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


def _appended(body: list[ast.stmt], name: str, entries: ast.List) -> list[ast.stmt]:
    """The statements with `name` as a list that each call appends its entry to."""
    wanted = [entry.id if isinstance(entry, ast.Name) else "" for entry in entries.elts]
    stored = {
        node.id: at
        for at, statement in enumerate(body)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    if len(set(wanted)) < len(wanted) or not set(wanted) <= stored.keys():
        return body
    places = [stored[entry] for entry in wanted]
    if places != sorted(set(places)):
        return body
    entry_name = wanted[0]
    statements: list[ast.stmt] = []
    for at, statement in enumerate(body):
        if _target(statement) == name:
            continue
        if at not in places:
            statements.append(statement)
            continue
        if at == places[0]:
            start = ast.AnnAssign(
                ast.Name(name, ast.Store()),
                code(CACHE_KIND),
                ast.List([], ast.Load()),
                1,
            )
            statements.append(start)
        old = wanted[places.index(at)]
        renamed = fill(statement, lambda hole: hole)
        for node in ast.walk(renamed):
            if isinstance(node, ast.Name) and node.id == old:
                node.id = entry_name
        statements.append(renamed)
        statements.append(ast.Expr(call(f"{name}.append", code(entry_name))))
    return statements
