"""Parameters of a function that the function uses below a test for the first replica."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import DESCRIBES, DESCRIBING_METHODS, ENDING_METHODS
from migrate.model.calls.rank_tests import is_for_first, is_for_others
from migrate.model.calls.scopes import Function
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

Used = frozenset[str | int]


@lru_cache(maxsize=2)
def used_by_some(analysis: Analysis) -> Mapping[Function, Used]:
    """Return the parameters that only the first replica uses, for each function that has such parameters.

    Each parameter is listed by its name and by its argument index (without `self`). Reading what is known
    without the values, as `x.shape`, does not count as a use.
    """
    used: dict[Function, Used] = {}
    for scope in analysis.scopes.values():
        for function in scope.functions:
            node = function.definition
            if isinstance(node, ast.FunctionDef) and (names := _used_in(node)):
                used[function] = names
    return used


def _used_in(function: ast.FunctionDef) -> Used:
    names = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    used = {name for node in _of_some(function.body) for name in _used(node)}
    indices: set[str | int] = {index for index, name in enumerate(names) if name in used}
    return frozenset(
        indices | (used & {*names, *(parameter.arg for parameter in function.args.kwonlyargs)})
    )


def _of_some(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of `body` that the first replica alone runs, until it ends the graph."""
    for index, statement in enumerate(body):
        if isinstance(statement, ast.If) and is_for_first(statement.test):
            yield from statement.body
        elif isinstance(statement, ast.If) and is_for_others(statement.test):
            yield from statement.orelse
            if isinstance(statement.body[-1], ast.Return):
                yield from body[index + 1 :]
                return
        elif isinstance(statement, ast.If | ast.For | ast.With):
            yield from _of_some(statement.body)
        elif _settles(statement):
            return


def _settles(statement: ast.stmt) -> bool:
    """Whether all replicas read a value in `statement`, or end the graph."""
    calls = (node for node in walk(statement) if isinstance(node, ast.Call))
    return any(getattr(call.func, "attr", "") in ENDING_METHODS for call in calls)


def _used(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr in DESCRIBES:
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for below in ast.iter_child_nodes(node):
        if isinstance(node, ast.Call) and below is node.func:
            if isinstance(below, ast.Attribute) and below.attr not in DESCRIBING_METHODS:
                yield from _used(below.value)
        else:
            yield from _used(below)
