"""Functions that run within training steps only, because the loss is computed from their results.

A loop without gradients in such a function, such as one that averages the predictions of a teacher, is a part
of the step: its turns are no steps of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import callers_of
from migrate.model.calls.effect import Effect
from migrate.model.calls.order import closure
from migrate.model.calls.rank_tests import parents
from migrate.model.calls.scopes import Function, Region, Scope
from migrate.model.objects.sampling import is_model
from migrate.syntax.walk_ast import walk

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOP = (ast.For, ast.AsyncFor, ast.While)
BLOCK = (*FUNCTION, *LOOP, ast.Module)


@lru_cache(maxsize=2)
def feeding_of(analysis: Analysis) -> frozenset[Function]:
    """Return the functions of a project that are called only to compute a step's loss.

    An evaluation that runs a model itself gets a step for each turn, so calls beside the model are in it.
    """
    feeding = frozenset(call for call in _feeding_calls(analysis) if not analysis.effect(call))
    called = [f for call in feeding for f in analysis.running[call].functions]
    scopes = set(closure(called, lambda function: _run_by(function, analysis)))
    callers = callers_of(analysis) if scopes else {}
    while others := [
        function
        for function in scopes
        if any(
            call not in feeding and at not in scopes and not _is_beside_model(call, at, analysis)
            for call, at in callers.get(function, ())
        )
    ]:
        scopes.difference_update(others)
    return frozenset(scopes)


def _is_beside_model(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` stands in a loop over batches whose turns run a model themselves."""
    above = parents(scope.module)
    block: ast.AST | None = call
    while block is not None and not isinstance(block, ast.For | ast.FunctionDef):
        block = above.get(block)
    if not isinstance(block, ast.For):
        return False
    calls = (node for statement in block.body for node in walk(statement))
    return any(
        isinstance(node, ast.Call) and node is not call and is_model(node, scope, analysis)
        for node in calls
    )


def _feeding_calls(analysis: Analysis) -> Iterator[ast.Call]:
    """Yield the calls in step loops, and in functions they run, that compute the inputs of a training call.

    The result may include a call that runs a backward pass.
    """
    seen: set[Region] = set()
    waiting = list(analysis.step_loops)
    while waiting:
        region = waiting.pop()
        if region in seen:
            continue
        seen.add(region)
        waiting += region.inner
        for call, scope in region.calls:
            if Effect.BACKWARD in analysis.effect(call):
                yield from _before(call, scope)
                waiting += [function.region for function in analysis.running[call].functions]


def _before(backward: ast.Call, scope: Scope) -> Iterator[ast.Call]:
    """Yield the calls in the same turn or function that compute the argument of `backward`."""
    above = parents(scope.module)
    block: ast.AST = backward
    while not isinstance(block, BLOCK):
        block = above[block]
    assigned = [
        node
        for node in walk(block)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        and node.value is not None
        and node.lineno <= backward.lineno
    ]
    needed = _names(backward)
    yield from (node for node in walk(backward) if isinstance(node, ast.Call))
    for assign in sorted(assigned, key=lambda node: node.lineno, reverse=True):
        targets = assign.targets if isinstance(assign, ast.Assign) else [assign.target]
        if needed.isdisjoint(name for target in targets for name in _names(target)):
            continue
        value = assign.value
        assert value is not None
        needed |= _names(value)
        yield from (node for node in walk(value) if isinstance(node, ast.Call))


def _names(node: ast.AST) -> set[str]:
    """Return the names and attributes, each as it is spelled, in `node`."""
    named = (part for part in walk(node) if isinstance(part, ast.Name | ast.Attribute))
    return {ast.unparse(part) for part in named}


def _run_by(function: Function, analysis: Analysis) -> Iterator[Function]:
    for region in analysis.regions(function.region):
        for call, _ in region.calls:
            yield from analysis.running[call].functions
