"""Barriers in two halves: the first replica reaches one half, the others reach the other."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.replicas.first_replica import on_first, parts
from migrate.syntax.tree import code, nodes

if TYPE_CHECKING:
    from migrate.reading.script import Script


class Side(Enum):
    """Replicas that reach a location."""

    FIRST = "the first"
    OTHERS = "the others"


def is_half(barrier: cst.Call, context: Script) -> bool:
    """Whether a rank test in the same function decides which replicas reach `barrier`."""
    return isinstance(context.guards.around(barrier), cst.If)


def is_met(barrier: cst.Call, halves: Sequence[cst.Call], context: Script) -> bool:
    """Whether the replicas that do not reach `barrier` reach another of `halves` instead.

    Args:
        barrier: a barrier under a rank test.
        halves: all such barriers of the function, in the order of the source.
        context: the script.
    """
    own = side(barrier, context)
    if own is None:
        return False
    sides = [side(half, context) for half in halves]
    before = next(index for index, half in enumerate(halves) if half is barrier)
    number = sum(side is own for side in sides[:before])
    return number < sum(side is not None and side is not own for side in sides)


def side(barrier: cst.Call, context: Script) -> Side | None:
    """Return the replicas that reach `barrier`; None if the rank test does not show it."""
    guard = context.guards.around(barrier)
    if not isinstance(guard, cst.If):
        return None
    passes = _passing(guard.test, context)
    if passes is None or _is_in(barrier, guard.body):
        return passes
    if len(parts(guard.test)) > 1:
        return None  # the replicas that do not pass may be any
    return Side.OTHERS if passes is Side.FIRST else Side.FIRST


def _is_in(node: cst.CSTNode, root: cst.CSTNode) -> bool:
    return any(inner is node for inner in nodes(root))


def _passing(test: cst.BaseExpression, context: Script) -> Side | None:
    """Return the replicas that pass `test`."""
    if on_first(test, context) is not None:
        return Side.FIRST
    asked = [part for part in parts(test) if context.guards.asks(part)]
    all_but_first = bool(asked) and all(_stops_first(part, context) for part in asked)
    return Side.OTHERS if all_but_first else None


def _stops_first(part: cst.BaseExpression, context: Script) -> bool:
    """Whether all replicas but the first pass `part`: `rank != 0`, `rank > 0`, `not is_main()`, `rank`."""
    if isinstance(part, cst.UnaryOperation):
        return on_first(part.expression, context) is not None
    if isinstance(part, cst.Comparison) and len(part.comparisons) == 1:
        operator, right = part.comparisons[0].operator, part.comparisons[0].comparator
        if isinstance(operator, cst.NotIn) and isinstance(right, cst.Tuple | cst.List | cst.Set):
            values = {code(element.value) for element in right.elements}
            return "0" in values and values <= {"0", "-1"}
        if isinstance(operator, cst.NotEqual):
            return "0" in (code(part.left), code(right))
        return isinstance(operator, cst.GreaterThan) and code(right) == "0"
    return isinstance(part, cst.Name | cst.Attribute | cst.Call) and context.guards.is_index(part)
