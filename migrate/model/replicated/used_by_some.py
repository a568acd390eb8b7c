"""Parameters of a function that the function uses below a test of the rank."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import DESCRIBES, DESCRIBING_METHODS, ENDING_METHODS
from migrate.model.calls.rank_tests import RankEvaluator, differs
from migrate.model.calls.scopes import Function, Scope
from migrate.syntax.walk_ast import walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis

Used = frozenset[str | int]
# What a function uses of the arguments that its other parameters do not take: `*values`, `**metrics`.
REST, KEYWORDS = "*", "**"


@lru_cache(maxsize=2)
def used_by_some(analysis: Analysis) -> Mapping[Function, Used]:
    """Return the parameters that only some replicas use, for each function that has such parameters.

    Each parameter is listed by its name and by its argument index (without `self`); `*` and `**` stand for
    the arguments that `*values` and `**metrics` collect. A name that the function computes from a parameter
    counts as the parameter. Reading what is known without the values, as `x.shape`, does not count as a use.
    """
    used: dict[Function, Used] = {}
    for scope in analysis.scopes.values():
        for function in scope.functions:
            node = function.definition
            if isinstance(node, ast.FunctionDef) and (
                names := _used_in(node, function, analysis.evaluator)
            ):
                used[function] = names
    return used


def _used_in(function: ast.FunctionDef, scope: Scope, evaluator: RankEvaluator) -> Used:
    arguments = function.args
    names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    used = {name for node in _of_some(function.body, scope, evaluator) for name in _used(node)}
    used = _with_origins(used, function)
    indices: set[str | int] = {index for index, name in enumerate(names) if name in used}
    for parameter, sign in ((arguments.vararg, REST), (arguments.kwarg, KEYWORDS)):
        if parameter is not None and parameter.arg in used:
            indices.add(sign)
    return frozenset(
        indices | (used & {*names, *(parameter.arg for parameter in arguments.kwonlyargs)})
    )


def _with_origins(used: set[str], function: ast.FunctionDef) -> set[str]:
    """Return `used` with the names from which the function computes those names: `mean = x.mean()`."""
    if not used:
        return used
    origins: dict[str, set[str]] = defaultdict(set)
    for node in walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in walk(target):
                    if isinstance(name, ast.Name):
                        origins[name.id] |= set(_used(node.value))
    result, waiting = set(used), list(used)
    while waiting:
        more = origins[waiting.pop()] - result
        result |= more
        waiting += more
    return result


def _of_some(body: list[ast.stmt], scope: Scope, evaluator: RankEvaluator) -> Iterator[ast.stmt]:
    """Yield the statements of `body` that some replicas alone run, until all of them end the graph."""
    for index, statement in enumerate(body):
        if isinstance(statement, ast.If) and differs(statement.test, scope, evaluator):
            yield from (*statement.body, *statement.orelse)
            if any(map(_leaves, (statement.body, statement.orelse))):
                yield from body[index + 1 :]
                return
        elif isinstance(statement, ast.If | ast.For | ast.With):
            yield from _of_some(statement.body, scope, evaluator)
        elif _settles(statement):
            return


def _leaves(branch: list[ast.stmt]) -> bool:
    return bool(branch) and isinstance(branch[-1], ast.Return | ast.Raise)


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
