"""Processes that the script starts one by one and that train together."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.launchers import PROCESS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import ClassInstance, External, Partial
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, ModuleScope, Scope
from migrate.model.processes.launching import joining_of

LAST = "Process"
# Methods of process pools that run their first argument.
POOL = frozenset(
    {
        *("apply", "apply_async", "imap", "imap_unordered", "map", "map_async"),
        *("starmap", "starmap_async", "submit"),
    }
)
TARGET = 1  # its position among the parameters of a process


@lru_cache(maxsize=2)
def starting_replicas(analysis: Analysis) -> Mapping[Path, Sequence[ast.Call]]:
    """Return the calls of each file that make a process whose function joins a process group.

    They are `Process` of multiprocessing, of torch, or of a context (`mp.get_context("spawn").Process`),
    classes of the project that derive from it, and process pools. The function may join through calls, in any
    file.
    """
    joining = joining_of(analysis)
    if not joining:
        return {}
    starting = {
        path: list(_starting(top, joining, analysis)) for path, top in analysis.scopes.items()
    }
    return {path: calls for path, calls in starting.items() if calls}


def _starting(
    top: ModuleScope, joining: frozenset[Function], analysis: Analysis
) -> Iterator[ast.Call]:
    derived = _derived(analysis)
    data = top.module.data
    pools = b"Pool" in data and b"submitit" not in data
    if not derived and not pools and LAST.encode() not in data:
        return
    names = {LAST, *derived, *(POOL if pools else ())}
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, at in region.calls:
                named = any(keyword.arg == "target" for keyword in call.keywords)
                if not named and last_part(call.func) not in names:
                    continue
                if any(function in joining for function in _run_in_process(call, at, analysis)):
                    yield call


@lru_cache(maxsize=2)
def _derived(analysis: Analysis) -> frozenset[str]:
    """Return the names of the classes of the project that derive from `Process`."""
    return frozenset(
        class_.name
        for scope in analysis.scopes.values()
        for class_ in scope.classes
        if class_.bases and _is_process(class_, analysis)
    )


def _run_in_process(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that the process made by `call` runs; empty if it makes no process."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in POOL and call.args:
        workers = analysis.evaluator.values(call.args[0], scope)
        yield from (value for value in workers if isinstance(value, Function))
        return
    values = analysis.evaluator.values(call.func, scope)
    classes = [value for value in values if isinstance(value, Class)]
    derived = [class_ for class_ in classes if _is_process(class_, analysis)]
    for class_ in derived:
        run = analysis.evaluator.method(class_, "run")
        if run is not None:
            yield run
    named = any(isinstance(value, External) and value.name in PROCESS for value in values)
    of_context = not classes and isinstance(call.func, ast.Attribute) and call.func.attr == LAST
    if not (derived or named or of_context):
        return
    target = next((keyword.value for keyword in call.keywords if keyword.arg == "target"), None)
    if target is None and len(call.args) > TARGET:
        target = call.args[TARGET]
    for value in analysis.evaluator.values(target, scope):
        if isinstance(value, Function):
            yield value
        elif isinstance(value, Partial):
            yield value.of
        elif isinstance(value, ClassInstance):
            called = analysis.evaluator.method(value.of, "__call__")
            if called is not None:
                yield called


def _is_process(class_: Class, analysis: Analysis, depth: int = 4) -> bool:
    """Whether a class derives from `Process`."""
    for base in class_.bases:
        values = analysis.evaluator.values(base, class_.parent or class_)
        if any(isinstance(value, External) and value.name in PROCESS for value in values):
            return True
        if not values and last_part(base) == LAST:
            return True
        above = [value for value in values if isinstance(value, Class)]
        if depth and any(_is_process(ancestor, analysis, depth - 1) for ancestor in above):
            return True
    return False
