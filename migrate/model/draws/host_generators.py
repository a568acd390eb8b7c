"""Draws with a torch generator, which is on the host with XLA: they run on the CPU and cut the graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import lru_cache

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import callers_of
from migrate.model.calls.kinds import class_around
from migrate.model.calls.passing import passed_by
from migrate.model.calls.scopes import Function, Region, Scope, ValueBinding
from migrate.model.objects.sampling import gradient_free

GENERATOR = "torch.Generator"
# Methods of a generator that return it.
SAME = frozenset({"clone_state", "manual_seed"})
# Maximum number of names, attributes and parameters between a generator and a draw.
DEEPEST = 8


@lru_cache(maxsize=2)
def host_draws(analysis: Analysis) -> frozenset[ast.Call]:
    """Return the calls of `multinomial` with such a generator, in loops without gradients."""
    return frozenset(
        call
        for call, scope in _looped_calls(analysis)
        if _draws(call, scope, analysis)
        and any(
            keyword.arg == "generator" and _may_be_generator(keyword.value, scope, analysis)
            for keyword in call.keywords
        )
    )


@lru_cache(maxsize=2)
def host_drawing(analysis: Analysis) -> frozenset[ast.Call]:
    """Return the calls by which a project reaches such a draw, including the draws."""
    draws = host_draws(analysis)
    if not draws:
        return frozenset()
    scopes: set[Scope] = {
        scope
        for top in analysis.scopes.values()
        for call, scope in analysis.calls_in(top)
        if call in draws
    }
    drawing = set(draws)
    callers = callers_of(analysis)
    waiting = [scope for scope in scopes if isinstance(scope, Function)]
    while waiting:
        for call, scope in callers.get(waiting.pop(), ()):
            drawing.add(call)
            if isinstance(scope, Function) and scope not in scopes:
                scopes.add(scope)
                waiting.append(scope)
    return frozenset(drawing)


def _draws(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    func = call.func
    if not isinstance(func, ast.Attribute | ast.Name):
        return False
    names = analysis.evaluator.externals(func, scope)
    is_method = isinstance(func, ast.Attribute) and func.attr == "multinomial" and not names
    return is_method or "torch.multinomial" in names


def _looped_calls(analysis: Analysis) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that a loop without gradients makes, directly or through functions."""
    free: Set[Scope] = gradient_free(analysis)
    waiting: list[Region] = [
        region
        for scope in free
        if isinstance(scope, Function)
        for region in analysis.regions(scope.region)
        if region.loop is not None
    ]
    seen: set[Region] = set()
    while waiting:
        region = waiting.pop()
        if region in seen:
            continue
        seen.add(region)
        waiting += region.inner
        for call, scope in region.calls:
            yield call, scope
            waiting += [function.region for function in analysis.running[call].functions]


def _may_be_generator(
    node: ast.expr | None, scope: Scope, analysis: Analysis, depth: int = DEEPEST
) -> bool:
    """Whether `node` may be a torch generator, by all its values."""
    if node is None or depth <= 0:
        return False
    if isinstance(node, ast.IfExp):
        ways = (node.body, node.orelse)
        return any(_may_be_generator(way, scope, analysis, depth) for way in ways)
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in SAME:
            return _may_be_generator(func.value, scope, analysis, depth - 1)
        return GENERATOR in analysis.evaluator.externals(func, scope)
    own = class_around(scope)
    if isinstance(node, ast.Attribute) and own is not None:
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        bindings = own.attributes.get(node.attr, []) if is_own else []
    elif isinstance(node, ast.Name):
        around: Scope | None = scope
        while around is not None and node.id not in around.bindings:
            around = around.parent
        bindings = around.bindings[node.id] if around is not None else []
    else:
        return False
    return any(_gives_generator(binding, node, analysis, depth - 1) for binding in bindings)


def _gives_generator(binding: ValueBinding, node: ast.expr, analysis: Analysis, depth: int) -> bool:
    """Whether `binding` may bind the name or attribute `node` to such a generator."""
    if binding.kind == "value":
        value = binding.value
        return value is not node and _may_be_generator(value, binding.scope, analysis, depth)
    function = binding.scope
    if binding.kind != "param" or not isinstance(function, Function):
        return False
    return _is_passed(function, binding.name, analysis, depth)


def _is_passed(function: Function, name: str, analysis: Analysis, depth: int) -> bool:
    """Whether a call of `function` passes such a generator for the parameter `name`."""
    return any(
        passed.to is function
        and passed.name == name
        and _may_be_generator(passed.node, passed.scope, analysis, depth)
        for call, _ in callers_of(analysis).get(function, ())
        for passed in passed_by(analysis.running[call], analysis.evaluator)
    )
