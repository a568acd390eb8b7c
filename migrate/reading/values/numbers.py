"""Numbers that a script writes, also through variables: fractions and infinities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.wrong_operators import INFINITIES
from migrate.syntax.tree import string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

DEEPEST = 4


def fractional(node: cst.BaseExpression, facts: Facts, binary: bool = True, depth: int = 0) -> bool:
    """Whether `node` is surely a number that is no integer.

    Args:
        node: an expression.
        facts: what is known of its script.
        binary: whether 0.5 and 0.25 count, which a float holds exactly.
        depth: how many variables have been followed.
    """
    if isinstance(node, cst.UnaryOperation):
        return fractional(node.expression, facts, binary, depth)
    if isinstance(node, cst.Float):
        value = float(node.value.replace("_", ""))
        return not value.is_integer() and (binary or not (value * 4096).is_integer())
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
        if isinstance(node.right, cst.Integer | cst.Float) and not binary:
            divisor = float(node.right.value.replace("_", ""))
            return not (divisor and (4096 / divisor).is_integer())
        return True
    if isinstance(node, cst.Name | cst.Attribute) and depth < DEEPEST:
        given = facts.values.given_to(node)
        return bool(given) and all(fractional(one, facts, binary, depth + 1) for one in given)
    return False


def is_infinite(node: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is surely infinite: `float("inf")`, `math.inf`."""
    if isinstance(node, cst.UnaryOperation):
        return is_infinite(node.expression, facts, depth)
    if isinstance(node, cst.Call):
        is_float = isinstance(node.func, cst.Name) and node.func.value == "float" and node.args
        text = string_value(node.args[0].value) if is_float else None
        return text is not None and "inf" in text.lower()
    if facts.names.of(node) in INFINITIES:
        return True
    if isinstance(node, cst.Name | cst.Attribute) and depth < DEEPEST:
        given = facts.values.given_to(node)
        return bool(given) and all(is_infinite(one, facts, depth + 1) for one in given)
    return False
