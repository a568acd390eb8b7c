"""Functions that run a model without gradients, wherever the project switches them off."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Set
from functools import lru_cache

from migrate.catalogue.words import CALLED_MODEL
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import Callers, callers_of, is_for_each_held, reaching
from migrate.model.calls.kinds import UNKNOWN
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.registries import is_stored
from migrate.model.calls.scopes import Function, ModuleScope, Scope
from migrate.model.objects.asked import is_module, only_asks
from migrate.model.objects.programs import programs_of
from migrate.syntax.walk_ast import walk

# Methods that a framework, or torch itself, runs with gradients.
FORWARDS = frozenset({"forward", "__call__", "training_step"})
GRADIENT_FREE = frozenset({"no_grad", "inference_mode"})
# Calls that end the graph, by the last part of the name.
ENDS_GRAPH = frozenset({"sync", "mark_step", "step", "optimizer_step", "synchronize"})


@lru_cache(maxsize=2)
def samplers_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions that run a model and do not read a value, end the graph, or train.

    A call that may run methods of several classes reads only if each of them does: with the others nothing
    ends the graph.
    """
    functions = [f for top in analysis.scopes.values() for f in top.functions]
    running = {f: True for f in functions if f.name != "__init__" and _runs_model(f, analysis)}
    programs = programs_of(analysis)
    read = {f: True for f in programs.readers if isinstance(f, Function)}
    ended = {f: True for f in functions if ends_graph(f, analysis)}
    trained = {f: True for f in functions if trains(f, analysis)}

    def runs_once(call: ast.Call, scope: Scope, ran: Function) -> bool:
        return not is_for_each_held(call, scope, analysis)

    ending = reaching(analysis, {**read, **ended}, runs_once, surely=True)
    loud = {*ending, *reaching(analysis, trained, runs_once)}
    return frozenset(f for f in reaching(analysis, running) if f not in loud)


@lru_cache(maxsize=2)
def forwards_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the samplers that run a model outside of loops, and that are no forward themselves."""
    return _outside_loops(samplers_of(analysis), analysis)


@lru_cache(maxsize=2)
def batch_evaluators(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions that run a model outside of loops without training, also those that read values.

    A loop over them evaluates a batch in each turn: `validation_step(batch)`.
    """
    functions = [f for top in analysis.scopes.values() for f in top.functions]
    running = {f: True for f in functions if f.name != "__init__" and _runs_model(f, analysis)}
    training = reaching(analysis, {f: True for f in functions if trains(f, analysis)})
    return _outside_loops(
        frozenset(f for f in reaching(analysis, running) if f not in training), analysis
    )


def _outside_loops(running: Set[Scope], analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of `running` that run a model outside of loops, without forwards of modules."""
    outside = [f for f in running if isinstance(f, Function) and f.name not in FORWARDS]
    looping = {f: True for f in outside if _loops(f, running, analysis)}
    # A model may loop over its layers.
    around = reaching(analysis, looping, lambda call, scope, ran: ran.name not in FORWARDS)
    return frozenset(f for f in outside if f not in around)


def _loops(function: Function, samplers: Set[Scope], analysis: Analysis) -> bool:
    """Whether a loop in `function` runs a model, directly or through calls."""
    return any(
        is_model(call, scope, analysis) or not samplers.isdisjoint(analysis.running[call].functions)
        for loop in analysis.regions(function.region)
        if loop.loop is not None
        for region in analysis.regions(loop)
        for call, scope in region.calls
    )


@lru_cache(maxsize=2)
def gradient_free(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions without gradients: by a decorator, or in all their calls."""
    functions = [f for top in analysis.scopes.values() for f in top.functions]
    scopes: set[Scope] = {f for f in functions if any(map(_is_free, f.decorators))}
    blocks = {id(call) for top in analysis.scopes.values() for call in _below_blocks(top)}
    callers = callers_of(analysis)
    callers = {**callers, **_open_callers(functions, callers, analysis)}
    before = -1
    while before < len(scopes):
        before = len(scopes)
        for function in functions:
            calls = [
                (call, scope)
                for call, scope in callers.get(function, ())
                if id(call) in blocks or scope in scopes or not _is_unused(scope, callers, analysis)
            ]
            if calls and all(id(call) in blocks or scope in scopes for call, scope in calls):
                scopes.add(function)
    return frozenset(scopes)


def _open_callers(functions: list[Function], callers: Callers, analysis: Analysis) -> Callers:
    """Return the calls that may run samplers without a known caller, through a registry.

    They are calls of a method of that name on an unknown object. For a function registered by a decorator,
    they are all unknown calls with tensors.
    """
    samplers = samplers_of(analysis)
    methods: dict[str, list[Function]] = defaultdict(list)
    registered = []
    for function in functions:
        if function not in samplers or not _is_unused(function, callers, analysis):
            continue
        if function.owner is not None:
            methods[function.name].append(function)
        elif is_stored(function, analysis):
            registered.append(function)
    open_calls: dict[Function, list[tuple[ast.Call, Scope]]] = defaultdict(list)
    if not methods and not registered:
        return dict(open_calls)
    for call, running in analysis.running.items():
        func = call.func
        named = methods.get(func.attr, []) if isinstance(func, ast.Attribute) else registered
        if not named or running.functions or not call.args:
            continue
        if _is_open(func, running.scope, analysis):
            for function in named:
                open_calls[function].append((call, running.scope))
    return dict(open_calls)


def _is_open(func: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether the object of a method, or the origin of a function, is unknown."""
    evaluator = analysis.evaluator
    if isinstance(func, ast.Attribute):
        return not evaluator.values(func.value, scope) - {UNKNOWN}
    if isinstance(func, ast.Name):
        values = [binding.value for binding in evaluator.origins(func, scope)]
        if not any(isinstance(value, ast.Subscript | ast.Call) for value in values):
            return False
    return isinstance(func, ast.Name | ast.Subscript | ast.Call) and not (
        evaluator.values(func, scope) - {UNKNOWN}
    )


def _is_unused(scope: Scope, callers: Callers, analysis: Analysis) -> bool:
    """Whether the function `scope` has no known caller, and is no part of training itself."""
    if not isinstance(scope, Function) or scope in callers or scope.name in FORWARDS:
        return False
    return not trains(scope, analysis)


def _runs_model(function: Function, analysis: Analysis) -> bool:
    return any(is_model(call, scope, analysis) for call, scope in _calls(function, analysis))


def is_model(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` runs a model on arguments."""
    if not call.args and not call.keywords:
        return False
    func = call.func
    if isinstance(func, ast.Attribute) and func.attr == "forward":
        func = func.value
    name = last_part(func.func if isinstance(func, ast.Call) else func)
    if CALLED_MODEL.fullmatch(name):
        return not only_asks(call, analysis)
    # A loss is a module too, and runs on the host as often.
    is_loss = "crit" in name.lower() or "loss" in name.lower()
    return not is_loss and is_module(func, scope, analysis)


def ends_graph(function: Function, analysis: Analysis) -> bool:
    """Whether `function` itself ends the graph."""
    words = ("torch_xla", "xm", "shims")
    return any(
        last_part(call.func) in ENDS_GRAPH and ast.unparse(call.func).startswith(words)
        for region in analysis.regions(function.region)
        for call, _ in (*region.calls, *region.entered)
    )


def trains(function: Function, analysis: Analysis) -> bool:
    """Whether `function` itself computes gradients or takes an optimizer's step."""
    return any(bool(analysis.effect(call)) for call, _ in _calls(function, analysis))


def _calls(function: Function, analysis: Analysis) -> Iterator[tuple[ast.Call, Scope]]:
    for region in analysis.regions(function.region):
        yield from region.calls


def _below_blocks(top: ModuleScope) -> Iterator[ast.Call]:
    """Yield the calls below `with torch.no_grad():`."""
    for node in top.module.nodes:
        if isinstance(node, ast.With) and any(_is_free(item.context_expr) for item in node.items):
            for statement in node.body:
                yield from (node for node in walk(statement) if isinstance(node, ast.Call))


def _is_free(node: ast.expr) -> bool:
    return last_part(node.func if isinstance(node, ast.Call) else node) in GRADIENT_FREE
