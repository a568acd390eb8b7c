"""Values that all replicas compute after a step, and that are still pending when some replicas read them."""

from __future__ import annotations

import libcst as cst

from migrate.catalogue.words import READ_METHODS, SYNCS
from migrate.check.common import method, place_of, receiver
from migrate.check.rules.ranks.guarded_collective import COLLECTIVE
from migrate.reading.collectives.pending_values import HOLDS
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import Assignment, How
from migrate.reading.names.dead_branches import never_runs
from migrate.reading.replicas.guards import Guard
from migrate.reading.steps.in_step import When

DEPTH = 3  # maximum number of nested functions to follow


def computed_after(
    read: cst.BaseExpression, at: cst.CSTNode, facts: Facts
) -> cst.BaseExpression | None:
    """Return where all replicas compute a name that is read after a step, or None if none is pending."""
    if facts.steps.when(at) not in (When.EVERY_STEP, When.SOMETIMES):
        return None
    for name in facts.below(read, cst.Name):
        value = _pending(name, at, facts)
        if value is not None:
            return value
    return None


def _pending(
    name: cst.Name, at: cst.CSTNode, facts: Facts, depth: int = DEPTH
) -> cst.BaseExpression | None:
    """Return what all replicas compute after a step, in place of `name`, and nothing has run before `at`."""
    # The statement that reads may bind the name anew: `acc = acc.item()`.
    start = start_of_statement(at, facts)
    before = [assignment for assignment in facts.bindings.given(name) if assignment.place < start]
    value = before[-1].value if before else None
    if value is None or facts.guards.around(value) is not None:
        return None
    if facts.steps.when(value) not in (When.EVERY_STEP, When.SOMETIMES):
        return _returned(name, before[-1], at, facts, depth)
    if _ran_between(name.value, value, at, facts):
        return None
    trains = isinstance(value, cst.Call) and bool(facts.context.effects.of(value))
    if computes(value) and facts.values.on_device(value) and not trains:
        return value
    return _returned(name, before[-1], at, facts, depth)


def _returned(
    name: cst.Name, assignment: Assignment, at: cst.CSTNode, facts: Facts, depth: int
) -> cst.BaseExpression | None:
    """Return the pending value in the result of a function of the script, or in its part `name`."""
    call = assignment.value
    if not depth or not isinstance(call, cst.Call) or _ran_between(name.value, call, at, facts):
        return None
    part: int | None = None
    if assignment.how is How.PART:
        targets = [facts.context.parent(binding.node) for binding in facts.context.bindings(name)]
        tuples = [
            (target, facts.context.parent(target))
            for target in targets
            if isinstance(target, cst.Element)
        ]
        places = [
            above.elements.index(element)
            for element, above in tuples
            if isinstance(above, cst.Tuple | cst.List)
        ]
        if len(places) != 1:
            return None
        part = places[0]
    for function in facts.context.called(call)[:3]:
        for value in facts.bindings.returns[id(function)]:
            if part is not None and isinstance(value, cst.Tuple) and part < len(value.elements):
                value = value.elements[part].value
            elif part is not None:
                continue
            origin = (
                _pending(value, value, facts, depth - 1) if isinstance(value, cst.Name) else None
            )
            if origin is not None:
                return origin
    return None


def kept_from(node: cst.CSTNode, facts: Facts) -> Guard | None:
    """Return the test that keeps some replicas from `node`: of the rank, or of a value of some replicas."""
    return facts.guards.around(node) or facts.guards.around_what_some_hold(node)


def computes(value: cst.BaseExpression) -> bool:
    """Whether a value is computed. Another name for an existing value is not: `loss`, `loss.detach()`."""
    inner = value
    while isinstance(inner, cst.Call) and method(inner) in ("detach", "data"):
        inner = inner.func.value if isinstance(inner.func, cst.Attribute) else inner
    if isinstance(inner, cst.Call) and HOLDS.fullmatch(method(inner) or ""):
        return False  # values that an object holds: `model.parameters()`
    return isinstance(inner, cst.Call | cst.BinaryOperation | cst.UnaryOperation | cst.Comparison)


def _ran_between(name: str, value: cst.CSTNode, at: cst.CSTNode, facts: Facts) -> bool:
    """Whether all replicas synchronize, read a name or reach a collective between two locations.

    A read runs the graph of the read value only. XLA308 reports reads of the result of a collective.
    """
    first, last = place_of(value, facts), place_of(at, facts)
    return any(
        first < place_of(call, facts) < last
        and kept_from(call, facts) is None
        and (facts.names.of(call.func) in SYNCS | COLLECTIVE or _reads_name(call, name))
        and never_runs(call, facts.context) is None
        for call in facts.below(facts.bindings.owner(at), cst.Call)
    )


def _reads_name(call: cst.Call, name: str) -> bool:
    read = receiver(call) if method(call) in READ_METHODS else None
    return isinstance(read, cst.Name) and read.value == name


def start_of_statement(node: cst.CSTNode, facts: Facts) -> tuple[int, int]:
    """Return the line and the column of the statement around `node`; `a = x; print(a)` is two statements."""
    around = (node, *facts.context.ancestors(node))
    kinds = cst.BaseSmallStatement | cst.BaseStatement
    return place_of(next((above for above in around if isinstance(above, kinds)), node), facts)
