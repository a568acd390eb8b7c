"""Follow the steps of a project's files into the functions of other files that they call."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import libcst as cst

from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kind import Kind
from migrate.model.calls.registries import is_step_alone, registries_of
from migrate.model.calls.scopes import Function, ModuleScope, Region
from migrate.model.facts import Definition, ModuleCalls
from migrate.reading.facts import Facts
from migrate.reading.flow.loaded import is_loaded
from migrate.reading.steps.drawn import drawn_of
from migrate.reading.values.entries import PassedKinds, StepFunction

Entries = Mapping[Path, Mapping[int, StepFunction]]
Leaving = tuple[Definition, StepFunction]
# A file is analyzed again when more is known of its arguments; at most this many times.
TURNS = 3
# Methods that a step runs, whoever calls them: those of modules and optimizers.
METHODS = ("forward", "step")
# Maximum number of calls with different arguments kept for one function.
MOST_CALLS = 6


def leaving(
    facts: Facts, name: str, origin_of: Callable[[int], int] = lambda line: line
) -> Iterator[Leaving]:
    """Yield the functions of other files that the steps of a script run, with their arguments.

    Args:
        facts: the script.
        name: name of the file in findings of other files, for the location of the call.
        origin_of: function from a line of the script to the line that is reported.
    """
    here = facts.context.file
    inside = {id(call) for call, _ in facts.steps.calls}
    calls = [(call, origin, False) for call, origin in facts.steps.calls]
    calls += [(call, at, True) for call, at in facts.steps.beside.calls if id(call) not in inside]
    for call, origin, beside in calls:
        may_run = (*facts.context.run_by(call), *facts.context.may_run(call))
        ran = [definition for definition in may_run if definition.path != here]
        later = [
            definition for definition in facts.context.run_later(call) if definition.path != here
        ]
        if not ran and not later:
            continue
        where = origin or f"{name}:{origin_of(facts.context.position(call).line)}"
        marked, trains = facts.steps.in_mark(call), facts.steps.in_training(call)
        for definition in () if beside else later:  # they are given gradients
            yield definition, StepFunction(definition.line, where, marked=marked)
        for definition in ran:
            positional = [Kind.UNKNOWN] * definition.bound
            loaded: set[int | str] = set()
            at, named_drawn = drawn_of(facts).passed(call)
            drawn: set[int | str] = {position + definition.bound for position in at}
            drawn |= named_drawn
            for arg in call.args:
                if arg.star or arg.keyword is not None:
                    break
                if is_loaded(arg.value, facts):
                    loaded.add(len(positional))
                positional.append(facts.values.kind(arg.value))
            named = tuple(
                (arg.keyword.value, facts.values.kind(arg.value))
                for arg in call.args
                if arg.keyword is not None
            )
            loaded.update(
                arg.keyword.value
                for arg in call.args
                if arg.keyword is not None and is_loaded(arg.value, facts)
            )
            passed = PassedKinds(
                tuple(positional),
                named,
                frozenset(loaded),
                frozenset(drawn),
                frozenset(_numbers(call, definition.bound, facts)),
            )
            yield (
                definition,
                StepFunction(definition.line, where, (passed,), marked, trains, beside),
            )


def _numbers(call: cst.Call, before: int, facts: Facts) -> Iterator[int | str]:
    """Yield the positions and names of the arguments that are plainly Python numbers."""
    for index, arg in enumerate(call.args):
        if arg.star:
            return
        if facts.values.is_number(arg.value):
            yield arg.keyword.value if arg.keyword is not None else index + before


def reached(
    starts: Sequence[Path], look: Callable[[Sequence[Path], Entries], Iterable[Iterable[Leaving]]]
) -> dict[Path, dict[int, StepFunction]]:
    """Return the functions that steps of other files run, by file and line.

    Args:
        starts: the files that have steps.
        look: function that returns the calls leaving each of several files, in the order of the files.
    """
    entries: dict[Path, dict[int, StepFunction]] = defaultdict(dict)
    turns: Counter[Path] = Counter()
    waiting = list(starts)
    while waiting:
        turns.update(waiting)
        again: dict[Path, None] = {}
        for function in look(waiting, entries):
            for definition, entry in function:
                if _note(entries[definition.path], entry) and turns[definition.path] < TURNS:
                    again[definition.path] = None
        waiting = list(again)
    return dict(entries)


def _note(known: dict[int, StepFunction], entry: StepFunction) -> bool:
    """Record a function that a step runs; return whether it is new."""
    before = known.get(entry.line)
    if before is None:
        known[entry.line] = entry
        return True
    new = tuple(call for call in entry.calls if call not in before.calls)
    if len(before.calls) >= MOST_CALLS:
        new = ()
    marked, trains = before.marked or entry.marked, before.trains or entry.trains
    beside = before.beside and entry.beside
    if not new and (marked, trains, beside) == (before.marked, before.trains, before.beside):
        return False
    origin = entry.origin if before.beside and not beside else before.origin
    known[entry.line] = replace(
        before,
        origin=origin,
        calls=before.calls + new,
        marked=marked,
        trains=trains,
        beside=beside,
    )
    return True


def starts(analysis: Analysis, calls: Mapping[Path, ModuleCalls]) -> Iterator[Path]:
    """Yield the files with a training loop, a marked step, or a forward or update into other files."""
    for path, scope in analysis.scopes.items():
        marked = b"torch_xla.step" in scope.module.data
        if (path in calls and calls[path].step_loops) or marked or _leads_out(scope, analysis):
            yield path


def entered_by_steps(analysis: Analysis) -> frozenset[Path]:
    """Return the files whose functions the training loops and forwards of other files may run.

    The set may be larger or smaller than the files that run: it only decides which trees are worth keeping.
    """
    functions = (function for top in analysis.scopes.values() for function in top.functions)
    waiting = [function.region for function in functions if function.name in METHODS]
    waiting += analysis.step_loops
    seen: set[Region] = set()
    paths: set[Path] = set()
    while waiting:
        region = waiting.pop()
        if region in seen:
            continue
        seen.add(region)
        waiting += region.inner
        for call, scope in region.calls:
            for callee in _callees(call, analysis):
                waiting.append(callee.region)
                if callee.module is not scope.module:
                    paths.add(callee.module.path)
    return frozenset(paths)


def _leads_out(scope: ModuleScope, analysis: Analysis) -> bool:
    """Whether a forward or update of the file runs a function of another file that is no forward itself."""
    waiting = [f for f in scope.functions if f.name in METHODS and f.owner is not None]
    seen: set[Function] = set()
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        for region in analysis.regions(function.region):
            for call, _ in region.calls:
                bound = analysis.running[call].bound
                for callee in _callees(call, analysis):
                    if callee.module is scope.module:
                        waiting.append(callee)
                    elif callee in bound or not _is_known_to_run(callee):
                        return True
    return False


def _callees(call: ast.Call, analysis: Analysis) -> Iterator[Function]:
    """Yield the functions that `call`, or the backward pass for it, runs or may run."""
    ran = analysis.running[call]
    yield from ran.functions
    yield from ran.later
    yield from registries_of(analysis).methods_of(call)


def _is_known_to_run(function: Function) -> bool:
    """Whether the function's own file treats it as a step without a caller: a `forward` with gradients."""
    return function.name == "__init__" or is_step_alone(function)
