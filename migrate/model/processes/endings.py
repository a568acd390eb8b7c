"""Functions that may stop their caller: they raise, assert or end the program.

An exception that is caught further up makes no difference: the statements after the call do not run in any
case.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.words import EXITS
from migrate.model.calls.callers import reaching
from migrate.model.calls.rank_tests import last_part
from migrate.syntax.walk_ast import children, walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import Function, ModuleScope, Scope

# Errors about the call of a function, not about the values of the training.
OF_ARGUMENTS = frozenset({"AttributeError", "NotImplementedError", "TypeError"})
_LAST_PARTS = frozenset(name.rpartition(".")[2] for name in EXITS)
# A file without any of these words stops nothing.
STOPPING = (b"raise", b"assert", b"exit", b"quit", b"abort")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NESTED = (*FUNCTIONS, ast.ClassDef, ast.Lambda)


@lru_cache(maxsize=2)
def ending_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project that may stop their caller, directly or through calls."""
    first: Mapping[Function, bool] = {
        function: True for scope in analysis.scopes.values() for function in _stopping(scope)
    }
    return frozenset(reaching(analysis, first))


def _stopping(scope: ModuleScope) -> Iterator[Function]:
    """Yield the functions of a file whose own statements may stop the caller."""
    data = scope.module.data
    if not any(word in data for word in STOPPING):
        return
    by_line: dict[int, list[Function]] = defaultdict(list)
    for function in scope.functions:
        by_line[function.line].append(function)
    for node in scope.module.nodes:
        if isinstance(node, FUNCTIONS) and any(map(_stops, _own(node))):
            yield from by_line.get(node.lineno, ())


def _own(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes in the body of `function`, without inner functions."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, NESTED):
            waiting += children(node)


def _stops(node: ast.AST) -> bool:
    """Whether `node` raises, asserts or ends the program because of a value, not of an argument's type."""
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return not (isinstance(raised, ast.Name) and raised.id in OF_ARGUMENTS)
    if isinstance(node, ast.Assert):
        calls = (part.func for part in walk(node.test) if isinstance(part, ast.Call))
        return not any(
            isinstance(callee, ast.Name) and callee.id == "isinstance" for callee in calls
        )
    if not isinstance(node, ast.Call) or last_part(node.func) not in _LAST_PARTS:
        return False
    return ast.unparse(node.func) in EXITS
