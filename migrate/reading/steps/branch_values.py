"""Names that a branch sets to another value, and that a later statement of the step computes with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
from libcst.metadata import CodePosition

from migrate.reading.names.bindings import FILLS
from migrate.syntax.tree import base_name, nodes_of, targets

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

Place = tuple[int, int]
# Methods that take something out of a container.
TAKES_OUT = frozenset({"clear", "discard", "pop", "popitem", "remove"})
# Maximum number of names followed: `extra = {"label": label}`.
DEEPEST = 3


def computed_with_later(condition: cst.If, facts: Facts) -> Iterator[cst.CSTNode]:
    """Yield the device computations that use a value set by a branch of `condition`.

    They are calls, operations, or later conditions that test the value. A Python number is an input of the
    graph: another number makes no other graph.
    """
    branches = [condition.body, *([condition.orelse] if condition.orelse is not None else [])]
    assigns = [assign for branch in branches for assign in facts.below(branch, cst.Assign)]
    places = {_place(assign, facts) for assign in assigns}
    filled = {name for branch in branches for name in _filled(branch)}
    if places or filled:
        yield from _uses_after(condition, places, filled, facts, DEEPEST)


def _uses_after(
    statement: cst.CSTNode, places: set[Place], filled: set[str], facts: Facts, depth: int
) -> Iterator[cst.CSTNode]:
    """Yield the computations after `statement` that use names set at `places`, or containers of a name."""
    around = facts.context.function_around(statement) or facts.context.module
    end = facts.context.end(statement)
    for name in facts.below(around, cst.Name):
        start = facts.context.position(name)
        if (start.line, start.column) < (end.line, end.column) or not facts.steps.inside(name):
            continue
        still_filled = name.value in filled and not _is_given_after(name, end, facts)
        if still_filled or _is_given_at(name, places, facts):
            yield from _uses(name, facts, depth)


def _place(node: cst.CSTNode, facts: Facts) -> Place:
    start = facts.context.position(facts.context.statement_around(node))
    return start.line, start.column


def _filled(branch: cst.CSTNode) -> Iterator[str]:
    """Yield the names of the containers whose entries `branch` sets or removes."""
    for target in targets(branch):
        if isinstance(target, cst.Subscript) and isinstance(target.value, cst.Name):
            yield target.value.value
    for part in nodes_of(branch, cst.Del):
        if isinstance(part.target, cst.Subscript) and (name := base_name(part.target)):
            yield name
    for call in nodes_of(branch, cst.Call):
        method = call.func
        if (
            isinstance(method, cst.Attribute)
            and isinstance(method.value, cst.Name)
            and method.attr.value in FILLS | TAKES_OUT
        ):
            yield method.value.value


def _is_given_at(name: cst.Name, places: set[Place], facts: Facts) -> bool:
    """Whether `name` may hold a value set by a statement at one of `places` that is no number."""
    return any(
        assignment.place in places
        and assignment.value is not None
        and not _is_number(assignment.value, facts)
        for assignment in facts.bindings.reaching(name)
    )


def _is_given_after(name: cst.Name, end: CodePosition, facts: Facts) -> bool:
    """Whether `name` gets another value between `end` and this mention."""
    reaching = facts.bindings.reaching(name)
    return bool(reaching) and all(
        (end.line, end.column) <= assignment.place and assignment.place < _place(name, facts)
        for assignment in reaching
    )


def _is_number(value: cst.BaseExpression, facts: Facts) -> bool:
    is_truth = isinstance(value, cst.Name) and value.value in ("True", "False")
    return not is_truth and facts.values.is_number(value)


def _uses(name: cst.Name, facts: Facts, depth: int) -> Iterator[cst.CSTNode]:
    """Yield the device computations with the mention `name`, or with values made from it."""
    below: cst.CSTNode = name
    for above in facts.context.ancestors(name):
        if isinstance(above, cst.If | cst.IfExp | cst.While) and below is above.test:
            yield above
            return
        if isinstance(above, cst.Assign) and below is above.value and depth:
            yield from _uses_after(above, {_place(above, facts)}, set(), facts, depth - 1)
            return
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement | cst.Lambda):
            return
        if isinstance(above, cst.Call) and facts.values.is_move(above):
            return
        if isinstance(above, cst.Call | cst.BinaryOperation) and facts.values.on_device(above):
            yield above
            return
        below = above
