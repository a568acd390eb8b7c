"""Result of a rank test on the first replica, and what is left of the test if all replicas continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import code, nodes_of

if TYPE_CHECKING:
    from migrate.reading.script import Script


@dataclass(frozen=True)
class Rest:
    """Rank test as the first replica sees it.

    Args:
        others: the parts that do not ask for the rank, in order; all of them must hold.
        asked: the parts that ask for the rank.
    """

    others: tuple[cst.BaseExpression, ...]
    asked: tuple[cst.BaseExpression, ...]


def on_first(test: cst.BaseExpression, context: Script) -> Rest | None:
    """Split a rank test into its parts; None if it does not simply let the first replica pass."""
    rest = _split(parts(test), context)
    certain = rest is not None and all(_passes_first(part, context) for part in rest.asked)
    return rest if certain else None


def off_first(test: cst.BaseExpression, context: Script) -> Rest | None:
    """Split a test that all replicas but the first pass; None if it does not certainly let them all pass.

    `rank != 0`, `not is_main()`, `step % 100 or rank > 0`: the first one may pass it, too.
    """
    rest = _split(_operands(test, cst.Or), context)
    certain = rest is not None and any(_passes_others(part, context) for part in rest.asked)
    return rest if certain else None


def _split(tests: list[cst.BaseExpression], context: Script) -> Rest | None:
    """Split tests into those that ask for the rank, and the others; None if none asks, or one for a group.

    Of a group one replica passes, not the first alone.
    """
    asked = [part for part in tests if context.guards.asks(part)]
    if not asked or any(map(context.guards.asks_for_a_group, asked)):
        return None
    return Rest(tuple(part for part in tests if part not in asked), tuple(asked))


def joined(tests: tuple[cst.BaseExpression, ...]) -> cst.BaseExpression:
    """Return the tests `tests` joined by `and`."""
    test = tests[0]
    for part in tests[1:]:
        test = cst.BooleanOperation(test, cst.And(), part)
    return test


def is_local(asked: tuple[cst.BaseExpression, ...]) -> bool:
    """Whether a rank test lets one replica of every host pass: `local_rank == 0`, `rank % n == 0`."""
    return any("local" in code(part).lower() or "%" in code(part) for part in asked)


def parts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the tests that `and` joins in `test`."""
    return _operands(test, cst.And)


def _operands(
    test: cst.BaseExpression, operator: type[cst.BaseBooleanOp]
) -> list[cst.BaseExpression]:
    """Return the tests that `operator` joins in `test`."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, operator):
        return [*_operands(test.left, operator), *_operands(test.right, operator)]
    return [test]


def _passes_others(part: cst.BaseExpression, context: Script) -> bool:
    """Whether all replicas but the first certainly pass `part`, which asks for the rank."""
    if isinstance(part, cst.UnaryOperation):
        return isinstance(part.operator, cst.Not) and on_first(part.expression, context) is not None
    if isinstance(part, cst.Comparison):
        return _is_compared_to_zero(part, cst.NotEqual) or (
            _is_compared_to_zero(part, cst.GreaterThan)
            and code(part.comparisons[0].comparator) == "0"
        )
    return isinstance(part, cst.Name | cst.Attribute) and context.guards.is_index(part)


def _passes_first(part: cst.BaseExpression, context: Script) -> bool:
    """Whether the first replica certainly passes `part`, which asks for the rank."""
    if isinstance(part, cst.BooleanOperation):
        sides = [part.left, part.right]
        if isinstance(part.operator, cst.Or):
            return any(_passes_first(s, context) for s in sides if context.guards.asks(s))
        # `not distributed or (distributed and rank == 0)`: the first replica passes one of them.
        asked = [side for side in sides if context.guards.asks(side)]
        return all(_passes_first(side, context) for side in asked)
    if isinstance(part, cst.UnaryOperation):
        inner = part.expression
        return isinstance(inner, cst.Name | cst.Attribute) and context.guards.is_index(inner)
    if isinstance(part, cst.Comparison):
        return _equals_zero(part)
    if isinstance(part, cst.Call | cst.Name | cst.Attribute):
        values = context.bound_values(part) if isinstance(part, cst.Name) else ()
        tests = (value for value in values if isinstance(value, cst.Comparison))
        return not context.guards.is_index(part) and all(
            _passes_first(value, context) for value in tests if context.guards.asks(value)
        )
    return False


def _equals_zero(test: cst.Comparison) -> bool:
    operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
    if isinstance(operator, cst.In) and isinstance(right, cst.Tuple | cst.List | cst.Set):
        is_one = len(test.comparisons) == 1
        return is_one and {code(element.value) for element in right.elements} <= {"0", "-1"}
    return _is_compared_to_zero(test, cst.Equal)


def _is_compared_to_zero(test: cst.Comparison, operator: type[cst.BaseCompOp]) -> bool:
    """Whether `test` compares one value with 0, which is no sum: `rank - 1 == 0`, `(rank + 1) % 2 == 0`."""
    if len(test.comparisons) != 1 or _is_sum(test):
        return False
    target = test.comparisons[0]
    return isinstance(target.operator, operator) and "0" in (
        code(test.left),
        code(target.comparator),
    )


def _is_sum(test: cst.Comparison) -> bool:
    return any(nodes_of(test, cst.Add)) or any(nodes_of(test, cst.Subtract))
