"""Code that runs in the thread of a replica, where Python sets no signal handlers.

`torch_xla.launch` starts a process per device and runs the function in a thread of it, even with one device.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from migrate.catalogue.launchers import IN_THREADS, SCRIPT
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import External
from migrate.model.calls.rank_tests import last_part
from migrate.model.calls.scopes import Function, ModuleScope, Scope
from migrate.model.processes.reached import (
    End,
    Running,
    calls_of,
    end_of,
    place_of,
    reached,
)
from migrate.model.project.project import SourceModule
from migrate.syntax.walk_ast import walk

_WORDS = tuple(name.rpartition(".")[2].encode() for name in IN_THREADS)
# These raise in any thread but the main one.
HANDLERS = frozenset({"signal.signal", "signal.set_wakeup_fd"})
CATCHING = frozenset({"ValueError", "RuntimeError", "Exception", "BaseException"})
METHOD = "add_signal_handler"  # of an event loop
NAMES = frozenset(name.rpartition(".")[2] for name in HANDLERS) | {METHOD}


def handlers_in_threads(analysis: Analysis, scope: ModuleScope) -> Mapping[End, str]:
    """Return the calls of a program that set a signal handler in the thread of a replica.

    Returns:
        Each is identified by its end, with the code that sets the handler if that is in another file.
    """
    module = scope.module
    if not any(word in module.data for word in _WORDS):
        return {}
    handlers: dict[End, str] = {}
    for running, origin in _launched(scope, analysis):
        for call, at in calls_of(running, analysis, guard=running.module is module):
            if not _sets(call, at, analysis) or _is_safe(call, running.module):
                continue
            if running.module is module:
                handlers[end_of(call, module)] = ""
            elif origin is not None:
                handlers.setdefault(origin, place_of(running, analysis))
    return handlers


def _sets(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether a call sets a signal handler."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == METHOD:
        return True
    if isinstance(call.func, ast.Attribute) and last_part(call.func) not in NAMES:
        return False
    values = analysis.evaluator.values(call.func, scope)
    return any(isinstance(value, External) and value.name in HANDLERS for value in values)


def _is_safe(call: ast.Call, module: SourceModule) -> bool:
    """Whether a call is made in the main thread only, or its failure is caught."""
    for node in module.nodes:
        if isinstance(node, ast.If) and "main_thread" in ast.unparse(node.test):
            if any(_is_in(call, statement) for statement in (*node.body, *node.orelse)):
                return True
        elif isinstance(node, ast.Try) and any(_is_in(call, statement) for statement in node.body):
            caught = [handler.type for handler in node.handlers]
            if any(exception is None or CATCHING & _words(exception) for exception in caught):
                return True
    return False


def _is_in(call: ast.Call, statement: ast.stmt) -> bool:
    return statement.lineno <= call.lineno <= (statement.end_lineno or 0)


def _words(node: ast.expr) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def _launched(scope: ModuleScope, analysis: Analysis) -> Iterator[tuple[Running, End | None]]:
    """Yield the code that the launches of a file run in a thread, each with the call that leads to it."""
    workers: dict[Function, End | None] = {}
    whole = False
    for call, at in analysis.calls_in(scope):
        names = analysis.evaluator.externals(call.func, at)
        if names & IN_THREADS:
            whole = whole or SCRIPT in names
            for arg in (*call.args, *(keyword.value for keyword in call.keywords)):
                values = analysis.evaluator.values(arg, at)
                place = end_of(call, scope.module)
                workers |= {value: place for value in values if isinstance(value, Function)}
    path = scope.module.path
    if not workers and not whole:
        return
    if whole or any(_runs_a_file(worker, analysis) for worker in workers):
        yield from reached(analysis, [(scope, None)], path, scripts={path})
        return
    early = {entry.module.path for entry, _ in reached(analysis, [(scope, None)], path)}
    yield from reached(analysis, workers.items(), path, read=early)


def _runs_a_file(worker: Function, analysis: Analysis) -> bool:
    """Whether the function runs a whole file: `runpy.run_path(__file__)`."""
    return any(
        last_part(call.func) == "run_path" for call, _ in calls_of(worker, analysis, guard=False)
    )
