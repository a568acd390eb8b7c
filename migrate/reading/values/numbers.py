"""Numbers that a script writes, also through variables: fractions and infinities."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.syntax.tree import string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

INFINITIES = words(
    "math.inf numpy.inf numpy.Inf numpy.Infinity numpy.infty numpy.NINF numpy.PINF torch.inf"
)
_TEXT = re.compile(r"\s*[+-]?inf(inity)?\s*", re.IGNORECASE)
DEEPEST = 4


def fractional(node: cst.BaseExpression, facts: Facts, binary: bool = True, depth: int = 0) -> bool:
    """Whether `node` is surely a number that is no integer.

    Args:
        node: an expression.
        facts: the facts about its script.
        binary: whether fractions such as 0.5 and 0.25 count, which a float holds exactly.
        depth: number of variables followed so far.
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
        values = facts.values.given_to(node)
        return bool(values) and all(fractional(value, facts, binary, depth + 1) for value in values)
    return False


def is_infinity(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is an infinity as it is written: `float("inf")`, `math.inf`."""
    if isinstance(node, cst.Call):
        is_float = isinstance(node.func, cst.Name) and node.func.value == "float" and node.args
        text = string_value(node.args[0].value) if is_float else None
        return text is not None and _TEXT.fullmatch(text) is not None
    return isinstance(node, cst.Name | cst.Attribute) and facts.names.of(node) in INFINITIES


def is_infinite(node: cst.BaseExpression, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is surely infinite, also through variables: `p` of `p = float("inf")`."""
    if isinstance(node, cst.UnaryOperation):
        return is_infinite(node.expression, facts, depth)
    if is_infinity(node, facts):
        return True
    if isinstance(node, cst.Name | cst.Attribute) and depth < DEEPEST:
        values = facts.values.given_to(node)
        return bool(values) and all(is_infinite(value, facts, depth + 1) for value in values)
    return False
