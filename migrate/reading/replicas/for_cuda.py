"""Code that is for CUDA alone, in scripts that also run elsewhere: `if shims.device_type() == "cuda":`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import nodes, string_value

if TYPE_CHECKING:
    from migrate.reading.script import Script


ASKED = frozenset({"shims.device_type"})


def guarded(context: Script) -> frozenset[int]:
    """Return the ids of the nodes that only CUDA runs, and of the questions whether this is CUDA."""
    if not context.references("shims"):
        return frozenset()
    found: set[int] = set()
    for node in context.nodes:
        for root in _for_cuda(node, context):
            found.update(id(below) for below in nodes(root))
    return frozenset(found)


def _for_cuda(node: cst.CSTNode, context: Script) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Comparison) and asks_for_device_type(node, context):
        yield node
    elif isinstance(node, cst.If | cst.IfExp) and _is_cuda(node.test, context):
        yield node.body
    elif isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
        if _is_cuda(node.left, context):
            yield node.right
    elif isinstance(node, cst.BooleanOperation) and _is_cuda(node.left, context, cst.NotEqual):
        yield node.right


def asks_for_device_type(node: cst.Comparison, context: Script) -> bool:
    """Whether `node` compares `shims.device_type()`, or `shims.device().type`, with something."""
    left = node.left
    if isinstance(left, cst.Attribute) and left.attr.value == "type":
        left = left.value
        return isinstance(left, cst.Call) and context.qualified_name(left.func) == "shims.device"
    return isinstance(left, cst.Call) and context.qualified_name(left.func) in ASKED


def _is_cuda(
    test: cst.BaseExpression, context: Script, operator: type[cst.BaseCompOp] = cst.Equal
) -> bool:
    """Whether `test` holds on CUDA only; with `NotEqual`, everywhere else."""
    joined = isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And)
    if joined and operator is cst.Equal and isinstance(test, cst.BooleanOperation):
        return _is_cuda(test.left, context) or _is_cuda(test.right, context)
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return False
    asked = test.comparisons[0]
    equal = isinstance(asked.operator, operator) and string_value(asked.comparator) == "cuda"
    return equal and asks_for_device_type(test, context)
