"""Values of the device that a node may read."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.words import METER_METHODS, READ_METHODS, WRITES_TENSORS
from migrate.check.common import method, receiver
from migrate.reading.facts import Facts
from migrate.reading.flow.reads import in_text, is_log
from migrate.syntax.tree import code


def reads_at(node: cst.CSTNode, facts: Facts) -> Iterable[cst.BaseExpression]:
    """Yield the values that may be read at a node."""
    if isinstance(node, cst.FormattedStringExpression):
        yield node.expression
        return
    if isinstance(node, cst.Comparison):
        if _decides(node, facts):
            yield from (node.left, *(comparison.comparator for comparison in node.comparisons))
        return
    assert isinstance(node, cst.Call)
    read = receiver(node) if method(node) in READ_METHODS else None
    if read is not None:
        yield read
    elif isinstance(node.func, cst.Name) and node.func.value in ("float", "int"):
        yield from (arg.value for arg in node.args)
    elif (method(node) not in METER_METHODS and is_log(node, facts.context)) or facts.names.of(
        node.func
    ) in WRITES_TENSORS:
        for arg in node.args:
            yield from _parts(arg.value)


def _decides(node: cst.Comparison, facts: Facts) -> bool:
    """Whether the result of a comparison decides which code runs: `if loss < best`."""
    if any(isinstance(comparison.operator, cst.Is | cst.IsNot) for comparison in node.comparisons):
        return False
    below: cst.CSTNode = node
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.If | cst.IfExp | cst.While | cst.Assert):
            return below is above.test
        if not isinstance(above, cst.BooleanOperation | cst.UnaryOperation):
            return False
        below = above
    return False


def _parts(value: cst.BaseExpression) -> Iterable[cst.BaseExpression]:
    """Yield `value`, or the values that it holds or formats: `{"acc": acc}`, `"%f" % acc`."""
    if isinstance(value, cst.Dict | cst.Tuple | cst.List):
        for element in value.elements:
            yield element.value
    elif isinstance(value, cst.Call) and (code(value.func) == "dict" or method(value) == "format"):
        yield from (arg.value for arg in value.args)
    elif isinstance(value, cst.BinaryOperation) and in_text(value):
        yield from _parts(value.right)
    else:
        yield value
