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
    all_parts = parts(test)
    asked = [part for part in all_parts if context.guards.asks(part)]
    if any(map(context.guards.asks_for_a_group, asked)):
        return None  # one replica of each group passes, not the first alone
    if not asked or not all(_passes_first(part, context) for part in asked):
        return None
    return Rest(tuple(part for part in all_parts if part not in asked), tuple(asked))


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
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*parts(test.left), *parts(test.right)]
    return [test]


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
    if len(test.comparisons) != 1:
        return False
    operator, right = test.comparisons[0].operator, test.comparisons[0].comparator
    if isinstance(operator, cst.In) and isinstance(right, cst.Tuple | cst.List | cst.Set):
        return {code(element.value) for element in right.elements} <= {"0", "-1"}
    if any(nodes_of(test, cst.Add)) or any(nodes_of(test, cst.Subtract)):
        return False  # `rank - 1 == 0`, `(rank + 1) % 2 == 0`
    return isinstance(operator, cst.Equal) and "0" in (code(test.left), code(right))
