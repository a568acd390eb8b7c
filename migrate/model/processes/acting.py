"""Functions with external effects, that wait for the device, or in which all replicas meet.

Code that only computes, reads and prints may run on all replicas where one replica was to run it. Functions
with external effects write files, log, save, train, end the program or take from an iterator of their caller.
A function with a collective must not run on some replicas alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import TYPE_CHECKING

from migrate.catalogue.launchers import DDP
from migrate.catalogue.words import (
    ACTING_MODULES,
    ACTS,
    ACTS_OR_OF_TEXT,
    LOG_METHODS,
    LOGGER,
    LOGGING_METHODS,
    ONLY_ASKS,
    WAITS,
    WRAPPERS,
)
from migrate.model.calls.callers import is_for_each_held, may_run, reaching
from migrate.model.calls.effect import Effect
from migrate.model.calls.kinds import External
from migrate.model.calls.rank_tests import OF_RUN, last_part, parents
from migrate.model.calls.scopes import Class, Function
from migrate.model.objects.parts import passed_nodes
from migrate.model.processes.meetings import OBJECTS, OF_MPI, OF_XLA, TENSORS
from migrate.syntax.walk_ast import children, walk

if TYPE_CHECKING:
    from migrate.model.calls.analysis import Analysis
    from migrate.model.calls.scopes import Scope

WRITES = frozenset("wax+")
DEEPEST = 3  # maximum number of names and calls from an iterator back to the call that makes it
# Builtins that make iterators, and functions that run through what they are given.
MAKES_ITERATORS = frozenset({"enumerate", "filter", "iter", "map", "reversed", "zip"})
RUNS_THROUGH = frozenset(
    {"all", "any", "dict", "enumerate", "filter", "islice", "list", "map", "max", "min", "set"}
    | {"sorted", "sum", "tqdm", "tuple", "zip"}
)
# Functions that return the number of replicas, or whether they have a group, and their packages.
COUNTS = frozenset(
    {"device_count", "get_world_size", "Get_size", "is_available", "is_initialized", "world_size"}
)
OF_COUNTS = ("torch.distributed.", "torch.cuda.", "torch_xla.", "mpi4py.")
# A word of each file that keeps an iterator.
ITERATES = re.compile(
    rb"\biter\(|\bitertools\b|\byield\b|=\s*(enumerate|filter|map|reversed|zip)\("
)
# Collectives that all replicas make together: of torch, torch_xla, MPI.
MEETINGS = frozenset((*TENSORS, *OBJECTS, *OF_XLA, *OF_MPI, "barrier"))
MEETING_MODULES = ("torch.distributed.", "torch_xla.", "mpi4py.")
LAST_PARTS = frozenset(name.rpartition(".")[2] for name in WAITS)
# A file without one of these words neither waits nor wraps a model.
WAITING = re.compile("|".join(rf"\b{name}\b" for name in sorted(LAST_PARTS)).encode())
FORWARDING = re.compile(rb"DistributedDataParallel")
WRAPPING = re.compile(rb"DistributedDataParallel|FullyShardedDataParallel|\bDDP\b|\bFSDP\b|shims")


def acts(call: ast.Call) -> bool:
    """Whether `call`, by its name, has an external effect."""
    func = call.func
    name = last_part(func)
    if name == "open":
        return not _only_reads(call)
    if isinstance(func, ast.Name):
        return name in ACTS - ACTS_OR_OF_TEXT
    if not isinstance(func, ast.Attribute) or name in ONLY_ASKS:
        return False
    root = func.value
    while isinstance(root, ast.Attribute):
        root = root.value
    of = root.id if isinstance(root, ast.Name) else ""
    if of in ACTING_MODULES or (name in ACTS and (name not in ACTS_OR_OF_TEXT or of == "os")):
        return True
    if of == "os" and name == "remove":
        return True
    receiver = last_part(func.value)
    logs = LOG_METHODS.fullmatch(name) or name in LOGGING_METHODS
    return bool(logs and LOGGER.fullmatch(receiver)) or name.startswith("add_scalar")


def takes(call: ast.Call, scope: Scope) -> bool:
    """Whether `call` is `next(batches)` of an iterator that the function does not make.

    Whoever goes on with the iterator gets other elements then: another replica, other batches.
    """
    if not (isinstance(call.func, ast.Name) and call.func.id == "next" and call.args):
        return False
    return _is_from_outside(call.args[0], scope)


def _is_from_outside(node: ast.expr, scope: Scope, depth: int = DEEPEST) -> bool:
    """Whether a function does not make the object `node` itself, under whatever name it has it."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Name):
        return False  # `next(iter(loader))`
    bindings = scope.bindings.get(node.id, ())
    return not bindings or any(
        binding.kind == "param"
        or (
            depth > 0
            and binding.kind == "value"
            and isinstance(binding.value, ast.Name | ast.Attribute | ast.Subscript)
            and _is_from_outside(binding.value, scope, depth - 1)
        )
        for binding in bindings
    )


def iterated(analysis: Analysis, scope: Scope) -> Sequence[ast.expr]:
    """Return the iterators that a function, or the top of a file, runs through: `for x in batches`.

    Who goes on with such an iterator gets the elements after these. An iterable that makes an iterator of its
    own, such as a loader, is none.
    """
    if not _has_iterators(analysis):
        return ()
    known = _iterators_of(analysis)
    if scope not in known:
        known[scope] = tuple(_iterated(analysis, scope))
    return known[scope]


@lru_cache(maxsize=2)
def _iterators_of(analysis: Analysis) -> dict[Scope, Sequence[ast.expr]]:
    """Return the iterators that functions run through, as far as anything has asked for them."""
    return {}


def _iterated(analysis: Analysis, scope: Scope) -> Iterator[ast.expr]:
    for node in _within(scope):
        parts: list[ast.expr] = []
        match node:
            case ast.For(iter=part) | ast.AsyncFor(iter=part) | ast.comprehension(iter=part):
                parts = [part]
            case ast.YieldFrom(value=part) | ast.Starred(value=part):
                parts = [part]
            case ast.Call(func=func, args=args) if last_part(func) in RUNS_THROUGH:
                parts = args
        for part in parts:
            if isinstance(part, ast.Name | ast.Attribute) and _is_iterator(part, scope, analysis):
                yield part


@lru_cache(maxsize=2)
def _has_iterators(analysis: Analysis) -> bool:
    """Whether a file of the project makes an iterator and keeps it."""
    return any(ITERATES.search(module.data) for module in analysis.project.modules.values())


def _within(scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a function or of the top of a file, without those of the functions in it."""
    definition = getattr(scope, "definition", scope.module.tree)
    waiting = children(definition) if definition is not None else []
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += children(node)


def _is_iterator(
    node: ast.expr | None, scope: Scope, analysis: Analysis, depth: int = DEEPEST
) -> bool:
    """Whether `node` is an iterator, which gives each element once: `iter(loader)`, a generator."""
    evaluator = analysis.evaluator
    match node:
        case ast.Call(func=func):
            values = evaluator.values(func, scope)
            functions = analysis.running[node].functions if node in analysis.running else ()
            if any(function.yields or function.delegates for function in functions):
                return True
            if any(isinstance(v, External) and v.name.startswith("itertools.") for v in values):
                return True
            return not values and isinstance(func, ast.Name) and func.id in MAKES_ITERATORS
        case ast.Name(id=name):
            bindings = list(evaluator.bindings_of(name, scope))
        case ast.Attribute(value=of, attr=name):
            bindings = list(evaluator.members_of(of, name, scope))
        case _:
            return False
    for binding in bindings if depth else ():
        if binding.kind == "param" and isinstance(binding.scope, Function):
            passed = passed_nodes(analysis).get((binding.scope, binding.name), ())
            if any(
                isinstance(value, ast.Name | ast.Attribute)  # else the call has one of its own
                and _is_iterator(value, at, analysis, depth - 1)
                for value, at in passed
            ):
                return True
        elif binding.kind == "value" and _is_iterator(
            binding.value, binding.scope, analysis, depth - 1
        ):
            return True
    return False


def _only_reads(call: ast.Call) -> bool:
    mode = call.args[1] if len(call.args) > 1 else None
    mode = next((k.value for k in call.keywords if k.arg == "mode"), mode)
    if mode is None:
        return True
    return isinstance(mode, ast.Constant) and WRITES.isdisjoint(str(mode.value))


@lru_cache(maxsize=2)
def acting_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project with external effects, direct or through calls."""
    first: Mapping[Function, bool] = {
        function: True
        for scope in analysis.scopes.values()
        for function in scope.functions
        if analysis.effects.get(function, Effect.NONE)
        or any(
            acts(call) or takes(call, at)
            for region in analysis.regions(function.region)
            for call, at in region.calls
        )
        or any(_is_from_outside(node, function) for node in iterated(analysis, function))
    }
    return frozenset(reaching(analysis, first))


@lru_cache(maxsize=2)
def meeting_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project in which all replicas meet, or that run such a function.

    Code that a module runs only in training is left out: the first replica may evaluate alone, with a module
    whose training loss gathers. A module that some replicas train is reported as such. Also left out is a
    call per element of an object that is made for one call, `Logger().run(rows)` has no meters yet, and a
    call that switches the meeting off: `show(video, gather=False)`.
    """

    def counts(call: ast.Call, at: Scope, of: Function) -> bool:
        return _evaluating(call, at, of) and not _holds_nothing(call, at, of, analysis)

    first = _meeting_themselves(analysis)
    leading = frozenset(reaching(analysis, first, counts))
    return frozenset(
        reaching(
            analysis,
            first,
            lambda call, at, of: counts(call, at, of) and _may_meet(call, of, leading, analysis),
        )
    )


def runs_meeting(call: ast.Call, at: Scope, analysis: Analysis) -> bool:
    """Whether `call` runs a function of the project in which all replicas meet."""
    meeting = meeting_of(analysis)
    return any(
        function in meeting
        and not _holds_nothing(call, at, function, analysis)
        and _may_meet(call, function, meeting, analysis)
        for function in analysis.running[call].functions
    )


def _may_meet(call: ast.Call, function: Function, meeting: Set[Scope], analysis: Analysis) -> bool:
    """Whether no constant argument of `call` rules out what `function` meets in."""
    return may_run(
        call,
        function,
        lambda inner, at: meets(inner, at, analysis),
        analysis,
        meeting,
    )


@lru_cache(maxsize=2)
def combining_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions that make a collective of tensors, themselves or by a function that they run."""
    first = {
        function: True
        for scope in analysis.scopes.values()
        for function in scope.functions
        if not scope.names_called[function].isdisjoint(TENSORS)
    }
    return frozenset(reaching(analysis, first))


def _meeting_themselves(analysis: Analysis) -> Mapping[Function, bool]:
    return {
        function: True
        for scope in analysis.scopes.values()
        for function in scope.functions
        if any(
            meets(call, at, analysis)
            for region in analysis.regions(function.region)
            for call, at in region.calls
        )
    }


@lru_cache(maxsize=2)
def _surely_meeting(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions in which all replicas meet, whatever the objects of methods hold."""

    def counts(call: ast.Call, at: Scope, of: Function) -> bool:
        return _evaluating(call, at, of) and not is_for_each_held(call, at, analysis)

    return frozenset(reaching(analysis, _meeting_themselves(analysis), counts))


def _holds_nothing(call: ast.Call, at: Scope, of: Function, analysis: Analysis) -> bool:
    """Whether `call` meets once per element of its object, and the object is made for the call."""
    return _is_of_new(call, at, analysis) and of not in _surely_meeting(analysis)


def _is_of_new(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` is a method of an object that is made for it: `Logger().run(rows)`."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=made)):
            return any(isinstance(value, Class) for value in analysis.evaluator.values(made, scope))
    return False


def _evaluating(call: ast.Call, scope: Scope, function: Function) -> bool:
    """Whether `call` runs the function in evaluation, too.

    False below `if self.training:`, and for a name that is the function only there: `run =
    self.training_forward`.
    """
    if _in_training(call, scope):
        return False
    if not isinstance(call.func, ast.Name):
        return True
    values = [
        binding.value
        for binding in scope.bindings.get(call.func.id, ())
        if binding.value is not None
        and any(last_part(name) == function.name for name in _names_in(binding.value))
    ]
    return not values or not all(_in_training(value, scope) for value in values)


def _names_in(value: ast.expr) -> Iterator[ast.expr]:
    return (node for node in walk(value) if isinstance(node, ast.Name | ast.Attribute))


def _in_training(node: ast.AST, scope: Scope) -> bool:
    """Whether `node` is in a branch that runs only if a module trains."""
    above = parents(scope.module)
    below, node = node, above[node]
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        if isinstance(node, ast.If):
            if below in node.body and _needs_training(node.test, holds=True):
                return True
            if below in node.orelse and _needs_training(node.test, holds=False):
                return True
        below, node = node, above[node]
    return False


def _needs_training(test: ast.expr, *, holds: bool) -> bool:
    """Whether `test` holds, or does not, in a module that trains only: `self.training and joined()`."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _needs_training(operand, holds=not holds)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And if holds else ast.Or):
            return any(_needs_training(value, holds=holds) for value in values)
    return holds and last_part(test) == "training"


def meets(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether `call` is a collective that every run with several replicas makes."""
    if last_part(call.func) not in MEETINGS or any(k.arg == "group" for k in call.keywords):
        return False
    if _is_for_some_runs(call, scope, analysis):
        return False
    values = analysis.evaluator.values(call.func, scope)
    return any(isinstance(v, External) and v.name.startswith(MEETING_MODULES) for v in values)


def _is_for_some_runs(call: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Whether a condition around `call` asks for more than whether the run is distributed.

    Example: a rank argument, where -1 means that no replica is waited for.
    """
    above = parents(scope.module)
    below: ast.AST = call
    node = above.get(call)
    tests = []
    while node is not None and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        test = node.test if isinstance(node, ast.If | ast.IfExp | ast.While) else None
        if isinstance(node, ast.If) and _in_both(node):
            test = None  # whichever branch a replica takes, it meets the others
        if test is not None and below is not test:
            of_run = OF_RUN.search(ast.unparse(test)) is not None
            in_body = isinstance(node, ast.If) and below in node.body
            if isinstance(node, ast.If) and _needs_training(test, holds=in_body):
                return True
            if not of_run and not _counts_replicas(test, scope, analysis):
                return True
            tests.append(test)
        below, node = node, above.get(node)
    return node is not None and any(_may_be_nobody(test, node) for test in tests)


def _counts_replicas(
    test: ast.expr, scope: Scope, analysis: Analysis, depth: int = DEEPEST
) -> bool:
    """Whether a value in `test`, whatever its name, counts the replicas or asks for their group."""
    evaluator = analysis.evaluator
    for node in walk(test):
        if isinstance(node, ast.Call) and last_part(node.func) in COUNTS:
            values = evaluator.values(node.func, scope)
            if any(isinstance(v, External) and v.name.startswith(OF_COUNTS) for v in values):
                return True
        if isinstance(node, ast.Constant) and node.value == "WORLD_SIZE":
            return True
        if isinstance(node, ast.Name):
            bindings = list(evaluator.bindings_of(node.id, scope))
        elif isinstance(node, ast.Attribute):
            bindings = list(evaluator.members_of(node.value, node.attr, scope))
        else:
            continue
        for binding in bindings if depth else ():
            if binding.kind == "param" and isinstance(binding.scope, Function):
                origins = passed_nodes(analysis).get((binding.scope, binding.name), [])
            elif binding.kind == "value" and binding.value is not None:
                origins = [(binding.value, binding.scope)]
            else:
                origins = []
            if any(_counts_replicas(value, at, analysis, depth - 1) for value, at in origins):
                return True
    return False


def _in_both(condition: ast.If) -> bool:
    """Whether both branches of `condition` reach the same meetings: the root sends, the others receive."""
    first, second = (_named(branch) for branch in (condition.body, condition.orelse))
    return bool(first) and first == second


def _named(branch: list[ast.stmt]) -> set[str]:
    calls = (node for part in branch for node in walk(part) if isinstance(node, ast.Call))
    return {name for name in (last_part(call.func) for call in calls) if name in MEETINGS}


def _may_be_nobody(test: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether `test` asks for a parameter of its function that the function also compares with -1."""
    arguments = function.args
    asked = {node.id for node in walk(test) if isinstance(node, ast.Name)}
    asked &= {
        parameter.arg
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    }
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and node.left.id in asked
        and any(ast.unparse(part) == "-1" for other in node.comparators for part in walk(other))
        for node in walk(function)
    )


@lru_cache(maxsize=2)
def waiting_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project that wait for the device, directly or through calls."""
    first: Mapping[Function, bool] = {
        function: True
        for function, call, scope in _calls(analysis, WAITING)
        if last_part(call.func) in LAST_PARTS
        and any(name in WAITS for name in _names_of(call, scope, analysis))
    }
    return frozenset(reaching(analysis, first))


@lru_cache(maxsize=2)
def wrapping_of(analysis: Analysis) -> frozenset[Scope]:
    """Return the functions of a project that wrap a model, which broadcasts its weights."""
    first: Mapping[Function, bool] = {
        function: True
        for function, call, scope in _calls(analysis, WRAPPING)
        if any(name.endswith(WRAPPERS) for name in _names_of(call, scope, analysis))
    }
    return frozenset(reaching(analysis, first))


@lru_cache(maxsize=2)
def running_wrapped_of(analysis: Analysis) -> Mapping[Function, tuple[Function, ast.Call]]:
    """Return the methods of a project that run a wrapped model of their object, with that forward.

    A method counts that does so through others.
    """
    first: dict[Function, tuple[Function, ast.Call]] = {}
    for function, call, scope in _calls(analysis, FORWARDING):
        model = call.func
        if (
            function not in first
            and isinstance(model, ast.Attribute)
            and isinstance(model.value, ast.Name)
            and function.parameters[:1] == [model.value.id]
            and any(
                isinstance(binding.value, ast.Call)
                and any(name in DDP for name in _names_of(binding.value, binding.scope, analysis))
                for binding in analysis.evaluator.origins(model, scope)
            )
        ):
            first[function] = function, call
    return reaching(analysis, first)


def _calls(
    analysis: Analysis, words: re.Pattern[bytes]
) -> Iterator[tuple[Function, ast.Call, Scope]]:
    """Yield the calls of the functions in files that contain one of some words."""
    for top in analysis.scopes.values():
        for function in top.functions if words.search(top.module.data) else ():
            for region in analysis.regions(function.region):
                for call, scope in region.calls:
                    yield function, call, scope


def _names_of(call: ast.Call, scope: Scope, analysis: Analysis) -> Iterator[str]:
    for value in analysis.evaluator.values(call.func, scope):
        if isinstance(value, External):
            yield value.name
