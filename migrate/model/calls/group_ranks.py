"""Functions of a project whose result depends on the index of the replica in a group of replicas."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeGuard

from migrate.catalogue.words import RANK_FUNCTION
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function, ModuleScope, Scope
from migrate.syntax.walk_ast import walk

GET_RANK = "torch.distributed.get_rank"
# Maximum number of functions between a test and the question for the index.
DEEPEST = 4


def group_ranks(analysis: Analysis, top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls of a file that ask for the index in a group: directly, or by a function's result."""
    functions = _functions(analysis)
    for call, scope in analysis.calls_in(top):
        if _asks(call, scope, analysis) or functions & set(analysis.running[call].functions):
            yield call


@lru_cache(maxsize=2)
def _functions(analysis: Analysis) -> frozenset[Function]:
    """Return the functions that return the index in a group, or a result computed from it."""
    if not any(b"get_rank" in scope.module.data for scope in analysis.scopes.values()):
        return frozenset()
    answering: set[Function] = set()
    for _ in range(DEEPEST):
        more = {
            function
            for scope in analysis.scopes.values()
            for function in scope.functions
            if function not in answering and _returns(function, answering, analysis)
        }
        if not more:
            break
        answering |= more
    return frozenset(answering)


def _returns(function: Function, answering: set[Function], analysis: Analysis) -> bool:
    """Whether a result of `function` is computed from the index in a group."""
    return any(
        _asks(node, function, analysis)
        or (node in analysis.running and answering & set(analysis.running[node].functions))
        for value in function.returns
        for node in walk(value)
        if isinstance(node, ast.Call)
    )


def _asks(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` is `dist.get_rank(group)` with a group other than that of all replicas."""
    group = _group(call, scope, analysis)
    return group is not None and _is_group(group, scope, analysis)


def _group(call: ast.Call, scope: Scope, analysis: Analysis) -> ast.expr | None:
    """Return the group whose index `call` asks for, also through a function that passes the group on."""
    if not RANK_FUNCTION.fullmatch(last_part(call.func)):
        return None
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "group"), None)
    group = call.args[0] if call.args else named
    if group is None:
        return None
    if GET_RANK in analysis.evaluator.externals(call.func, scope):
        return group
    for function in analysis.running[call].functions if call in analysis.running else ():
        for value in function.returns:
            for node in walk(value):
                passed = [*node.args, *(k.value for k in node.keywords)] if _is_rank(node) else []
                if any(isinstance(p, ast.Name) and p.id in function.all_parameters for p in passed):
                    return group
    return None


def _is_rank(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and last_part(node.func) == "get_rank"


def _is_group(group: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether `group` may be a group of some replicas: a parameter is not followed to its callers."""
    waiting, seen = [(group, scope)], set[ast.expr]()
    while waiting:
        node, at = waiting.pop()
        if node in seen:  # `self.old = self.group; self.group = self.old`
            continue
        seen.add(node)
        match node:
            case ast.Constant(value=None) | ast.Attribute(attr="WORLD"):
                continue
            case ast.Name(id=name) if isinstance(at, Function) and name in at.all_parameters:
                continue
            case ast.Name() | ast.Attribute():
                bindings = analysis.evaluator.origins(node, at)
                values = [(b.value, b.scope) for b in bindings if b.value is not None]
                if not values:
                    return True
                waiting += [item for item in values if not isinstance(item[0], ast.Name)]
            case _:
                return True
    return False
