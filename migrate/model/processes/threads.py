"""Code that runs in the thread of a replica, where Python sets no signal handlers, and in threads beside it.

`torch_xla.launch` starts a process per device and runs the function in a thread of it, even with one device.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.launchers import IN_THREADS, SCRIPT
from migrate.catalogue.words import SAFETENSORS_SAVES, TORCH_SAVES
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.callers import callers_of
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


# Words of the files that start a thread, and what takes a function that then runs in one: the position of
# the function among the arguments, and its name.
STARTING = (b"Thread", b"to_thread", b"run_in_executor")
STARTS = {
    "threading.Thread": (1, "target"),
    "threading.Timer": (1, "function"),
    "asyncio.to_thread": (0, "func"),
    "_thread.start_new_thread": (0, ""),
}
SAVES = TORCH_SAVES | SAFETENSORS_SAVES | {"shims.save"}
POOLS = frozenset({"ThreadPool", "ThreadPoolExecutor"})
# Methods of a pool that run their first argument; of an event loop, the second one.
OF_POOLS = frozenset({"apply_async", "imap", "imap_unordered", "map", "map_async", "submit"})
OF_LOOPS = "run_in_executor"
THREAD = "threading.Thread"


@lru_cache(maxsize=2)
def saves_in_threads(analysis: Analysis) -> Mapping[Path, Mapping[End, str]]:
    """Return the saves of each file that a thread beside the replica's own runs.

    Returns:
        The value has the line that starts the thread; empty if all such lines pass what is on the CPU.
    """
    saves: dict[Path, dict[End, str]] = defaultdict(dict)
    started = [*_started(analysis)]
    starts: dict[Function, list[tuple[ast.Call, Scope]]] = defaultdict(list)
    for function, _, start in started:
        starts[function] += [start] if start is not None else []
    seen: set[Function] = set()
    waiting = deque((function, where) for function, where, _ in started)
    while waiting:
        function, where = waiting.popleft()
        if function in seen:
            continue
        seen.add(function)
        module = function.module
        for call, scope in calls_of(function, analysis, guard=False):
            names = analysis.evaluator.externals(call.func, scope)
            if not names.isdisjoint(SAVES) and call.args:
                is_moved = _is_moved(call.args[0], function, starts[function], analysis)
                saves[module.path].setdefault(end_of(call, module), "" if is_moved else where)
            waiting.extend((inner, where) for inner in analysis.running[call].functions)
    return saves


def _is_moved(
    saved: ast.expr, function: Function, starts: list[tuple[ast.Call, Scope]], analysis: Analysis
) -> bool:
    """Whether a thread saves a parameter for which each of its `starts` passes what is on the CPU."""
    if not isinstance(saved, ast.Name) or saved.id not in function.parameters or not starts:
        return _is_of_cpu(saved, function, analysis)
    place = function.parameters.index(saved.id) - function.is_bound
    if callers_of(analysis).get(function):
        return False  # it is called elsewhere too
    for start, scope in starts:
        named = {keyword.arg: keyword.value for keyword in start.keywords}
        args = named.get("args")
        passed = args.elts if isinstance(args, ast.Tuple | ast.List) else start.args[1:]
        if not 0 <= place < len(passed) or not _is_of_cpu(passed[place], scope, analysis):
            return False
    return True


def _is_of_cpu(node: ast.expr, scope: Scope, analysis: Analysis, depth: int = 3) -> bool:
    """Whether `node` is plainly on the CPU: `x.cpu()`, `{name: x.cpu() for …}`, a name for one of these."""
    match node:
        case ast.Constant():
            return True
        case ast.Call(func=ast.Attribute(attr="cpu" | "numpy" | "item" | "tolist")):
            return True
        case ast.Call(func=ast.Attribute(value=of, attr="clone" | "detach" | "copy")):
            return _is_of_cpu(of, scope, analysis, depth)
        case ast.DictComp(value=value) | ast.ListComp(elt=value):
            return _is_of_cpu(value, scope, analysis, depth)
        case ast.Dict(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
            return all(_is_of_cpu(value, scope, analysis, depth) for value in values)
        case ast.Name(id=name) if depth:
            bindings = [*analysis.evaluator.bindings_of(name, scope)]
            return bool(bindings) and all(
                binding.kind == "value"
                and binding.value is not None
                and _is_of_cpu(binding.value, binding.scope, analysis, depth - 1)
                for binding in bindings
            )
    return False


def _started(
    analysis: Analysis,
) -> Iterator[tuple[Function, str, tuple[ast.Call, Scope] | None]]:
    """Yield the functions that a project runs in threads, with the lines and calls that start these."""
    evaluator = analysis.evaluator
    for top in analysis.scopes.values():
        if not any(word in top.module.data for word in STARTING):
            continue
        for call, scope in analysis.calls_in(top):
            where = f"{top.module.path.name}:{call.lineno}"
            for value in evaluator.values(_run_in_thread(call, scope, analysis), scope):
                if isinstance(value, Function):
                    yield value, where, (call, scope)
        for class_ in top.classes:
            run = evaluator.method(class_, "run")
            if run is not None and THREAD in evaluator.external_bases(class_):
                yield run, f"{top.module.path.name}:{run.line}", None


def _run_in_thread(call: ast.Call, scope: Scope, analysis: Analysis) -> ast.expr | None:
    """Return the argument of a call that then runs in a thread."""
    place, name = -1, ""
    for external in analysis.evaluator.externals(call.func, scope):
        place, name = STARTS.get(external, (place, name))
    if isinstance(call.func, ast.Attribute) and place < 0:
        if call.func.attr == OF_LOOPS:
            place = 1
        elif call.func.attr in OF_POOLS and _is_pool(call.func.value, scope, analysis):
            place = 0
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in named:
        return named[name]
    return call.args[place] if 0 <= place < len(call.args) else None


def _is_pool(node: ast.expr, scope: Scope, analysis: Analysis) -> bool:
    """Whether an expression is a pool of threads: `submit` of another library starts processes."""
    if isinstance(node, ast.Call):
        return last_part(node.func) in POOLS
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    return any(
        isinstance(binding.value, ast.Call) and last_part(binding.value.func) in POOLS
        for binding in analysis.evaluator.origins(node, scope)
    )
