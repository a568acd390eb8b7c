"""Programs that train with several processes: started from outside, or one by one by the script itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from migrate.catalogue import libraries, torch_distributed, torch_other
from migrate.catalogue.entry import names
from migrate.catalogue.launchers import DDP, LAUNCHERS, PROCESS, SUBMITTERS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import ClassInstance, External, Partial
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Class, Function, ModuleScope, Region, Scope
from migrate.model.objects.programs import programs_of
from migrate.model.processes.launching import joining_of

MEANS_SEVERAL = torch_distributed.JOINS | DDP | names(*torch_other.SAMPLERS)
ASKS_FOR_GROUP = "torch.distributed.is_initialized"
# Calls that start the replicas, or pass the script to a starter.
BY_OTHERS = names(*libraries.LAUNCHERS) | SUBMITTERS


def is_distributed_training(analysis: Analysis, top: ModuleScope) -> bool:
    """Whether running a file trains on an accelerator, for several processes that it does not start."""
    if not any(_trains(analysis, region) for region in (top.guard, top.region)):
        return False
    reached = analysis.reached_from(top.module.path)
    loops = reached & analysis.step_loops
    called = set(_called(analysis, reached))
    if called.isdisjoint(MEANS_SEVERAL) or not called.isdisjoint(LAUNCHERS):
        return False
    if ASKS_FOR_GROUP in called and not any(map(_may_join, called)):
        return False  # one process: nothing that it runs joins the group for which it asks
    starting = {id(call) for calls in starting_replicas(analysis).values() for call in calls}
    if starting and any(id(call) in starting for region in reached for call, _ in region.calls):
        return False
    if not BY_OTHERS.isdisjoint(name.split(".")[0] for name in called):
        return False
    return any(
        programs_of(analysis).on_accelerator(scope, region)
        for at in analysis.scopes.values()
        for scope in (at, *at.functions)
        for root in scope.roots
        for region in analysis.regions(root)
        if region in loops
    )


def _may_join(name: str) -> bool:
    """Whether the function `name` of a library joins a process group, or makes one: `init_distributed`."""
    last = name.rpartition(".")[2]
    return (
        name in torch_distributed.JOINS
        or last in ("DeviceMesh", "fully_shard")
        or ("init" in last and ("dist" in last or "process" in last) and last != "is_initialized")
    )


def _trains(analysis: Analysis, root: Region) -> bool:
    """Whether a loop of a body trains, or a loop of a function that it calls."""
    training = programs_of(analysis).training
    return any(
        region in analysis.step_loops
        or any(
            not training.isdisjoint(analysis.running[call].functions) for call, _ in region.calls
        )
        for region in analysis.regions(root)
    )


def _called(analysis: Analysis, regions: set[Region]) -> Iterator[str]:
    for region in regions:
        for call, scope in region.calls:
            for value in analysis.evaluator.values(call.func, scope):
                if isinstance(value, External):
                    yield value.name


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
