"""Tensors that hold truth values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import BOOLEAN_METHODS, MASK, SAME_VALUES
from migrate.reading.names.bindings import How
from migrate.syntax.tree import keyword, string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts


def is_boolean(node: cst.CSTNode, facts: Facts, depth: int = 0, by_name: bool = True) -> bool:
    """Whether `node` is plausibly a tensor of truth values: a mask.

    Args:
        node: an expression.
        facts: what is known of its script.
        depth: number of expressions followed so far.
        by_name: whether an otherwise unknown variable is a mask by its name.
    """
    if depth > 5 or not facts.values.is_tensor(node):
        return False
    if isinstance(node, cst.Comparison):
        return True
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.BitInvert)
    if isinstance(node, cst.BinaryOperation):
        both = isinstance(node.operator, cst.BitAnd | cst.BitOr)
        return both and is_boolean(node.left, facts, depth + 1, by_name)
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value in SAME_VALUES - {"to"}:  # which may return another type
            return is_boolean(node.func.value, facts, depth + 1, by_name)
        dtype = keyword(node, "dtype")
        types = [dtype.value] if dtype is not None else []
        if node.func.attr.value in ("to", "type"):
            types = [arg.value for arg in node.args]
        if any(facts.names.of(dtype) == "torch.bool" for dtype in types):
            return True
        return node.func.attr.value in BOOLEAN_METHODS
    if isinstance(node, cst.Subscript):  # a part of a mask
        part = node.slice[0].slice
        named = isinstance(part, cst.Index) and string_value(part.value) is not None
        return not named and is_boolean(node.value, facts, depth + 1, by_name)
    if isinstance(node, cst.Attribute):  # by its class, else as an entry of a batch
        return facts.context.declared_tensor(node) is True
    if isinstance(node, cst.Name):
        binding = facts.bindings.nearest(node)
        value = binding.value if binding is not None and binding.how is How.VALUE else None
        if value is not None and is_boolean(value, facts, depth + 1, by_name):
            return True
        parameter = facts.bindings.parameter(node) if binding is None else None
        passed = list(facts.bindings.passed(parameter[0], node.value)) if parameter else []
        if passed:
            return any(is_boolean(value, facts, depth + 1, by_name) for value in passed)
        return by_name and MASK.search(node.value) is not None
    return False
