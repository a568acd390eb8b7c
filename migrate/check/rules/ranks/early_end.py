"""The end of a graph in some replicas only, before the training, with a collective pending in all."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import WAITS, WRAPPERS
from migrate.reading.collectives.pending_values import ends_the_graph, is_collective
from migrate.reading.facts import Facts
from migrate.reading.replicas.guards import Guard
from migrate.reading.steps.in_step import When
from migrate.syntax.tree import nodes_of

DEPTH = 3  # maximum number of nested functions to follow


def ended_early(call: cst.Call, facts: Facts) -> tuple[Guard, cst.Call] | None:
    """Return the test that keeps some replicas from `call`, and the collective that is pending there.

    `call` waits for the device. None if all replicas make it, or nothing is pending.
    """
    if (guard := facts.guards.around(call)) is None:
        return None
    if isinstance(guard, cst.FunctionDef) and not facts.guards.is_for_first(guard):
        return None  # reported at the call of the function
    if facts.steps.when(call) is not When.ELSEWHERE or facts.steps.between(call):
        return None
    if isinstance(guard, cst.If) and guard.orelse is not None:
        branches = (guard.body, guard.orelse)
        if all(any(_waits(c, facts) for c in facts.below(b, cst.Call)) for b in branches):
            return None  # the graph ends in all replicas
    collective = _pending_at(call, facts, DEPTH)
    return None if collective is None else (guard, collective)


def _waits(call: cst.Call, facts: Facts) -> bool:
    return (facts.names.of(call.func) or "") in WAITS or facts.context.effects.waits(call)


def _pending_at(at: cst.Call, facts: Facts, depth: int) -> cst.Call | None:
    """Return the last collective before `at` whose graph has not ended by then in all replicas."""
    around = facts.context.function_around(at)
    inside = around if isinstance(around, cst.FunctionDef) else None
    pending: cst.Call | None = None
    ended = False
    for call in _before(at, inside, facts):
        if _begins(call, facts):
            pending = call
        elif _ends(call, at, facts):
            pending, ended = None, True
    if pending is not None or ended or inside is None or not depth:
        return pending
    for call in facts.calls:
        if call is not at and any(callee is inside for callee in facts.context.called(call)):
            pending = _pending_at(call, facts, depth - 1)
            if pending is not None:
                return pending
    return _made_with(inside, facts)


def _before(at: cst.Call, inside: cst.FunctionDef | None, facts: Facts) -> Iterator[cst.Call]:
    """Yield the calls above a location in its function, in source order."""
    place = facts.context.position(at)
    calls = [
        call
        for call in facts.below(inside.body if inside else facts.context.module, cst.Call)
        if facts.context.function_around(call) is facts.context.function_around(at)
    ]
    for call in calls:
        position = facts.context.position(call)
        if (position.line, position.column) < (place.line, place.column):
            yield call


def _begins(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` leaves a collective in the graph, in all replicas."""
    name = facts.names.of(call.func) or ""
    begins = (
        name.endswith(WRAPPERS) or facts.context.effects.wraps(call) or is_collective(call, facts)
    )
    return begins and facts.guards.around(call) is None


def _ends(call: cst.Call, at: cst.Call, facts: Facts) -> bool:
    """Whether `call` ends the graph in all replicas that reach `at`."""
    effects = facts.context.effects
    if not (ends_the_graph(call, facts) or _waits(call, facts) or effects.has_steps(call)):
        return False
    if facts.guards.around(call) is not None:
        return False
    above = {id(ancestor) for ancestor in facts.context.ancestors(at)}
    return all(
        id(ancestor) in above
        for ancestor in facts.context.ancestors(call)
        if isinstance(ancestor, cst.If)
    )


def _made_with(method: cst.FunctionDef, facts: Facts) -> cst.Call | None:
    """Return the wrapping in the `__init__` of the class of a method."""
    owner = facts.context.class_around(method)
    for function in nodes_of(owner, cst.FunctionDef) if owner is not None else ():
        if function.name.value == "__init__" and function is not method:
            for call in facts.below(function.body, cst.Call):
                if _begins(call, facts):
                    return call
    return None
