"""Conditions on the presence of a GPU, and their remainder on a TPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.torch_cuda import AVAILABLE, BFLOAT16
from migrate.reading.values.devices import is_device_count
from migrate.syntax.tree import nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

ASKED = names(*AVAILABLE, *BFLOAT16)

# Result of folding a condition: its truth, or the remaining expression.
Answer = bool | cst.BaseExpression

# Comparisons of the number of GPUs that only test for a GPU, with the result if there is one.
ANY = {
    (cst.GreaterThan, "0"): True,
    (cst.GreaterThanEqual, "1"): True,
    (cst.NotEqual, "0"): True,
    (cst.Equal, "0"): False,
    (cst.LessThan, "1"): False,
    (cst.LessThanEqual, "0"): False,
}


def is_asked(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` tests for an accelerator by CUDA's names, which do not mean XLA.

    The number of GPUs is such a test too if only 0 matters: `torch.cuda.device_count() > 0`.
    """
    if context.qualified_name(call.func) in ASKED:
        return True
    if not is_device_count(call, context):
        return False
    if any_of(context.parent(call), context) is not None:
        return True
    condition = whole_condition(call, context)
    above = context.parent(condition)
    return isinstance(above, cst.If | cst.IfExp | cst.Assert) and above.test is condition


def any_of(node: cst.CSTNode | None, context: Workspace) -> bool | None:
    """Return the result of `torch.cuda.device_count() > 0` if there is a device. None for another node."""
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return None
    compared = node.comparisons[0]
    if not is_device_count(node.left, context) or not isinstance(compared.comparator, cst.Integer):
        return None
    return ANY.get((type(compared.operator), compared.comparator.value))


def whole_condition(call: cst.Call, context: Workspace) -> cst.BaseExpression:
    """Return the whole condition around `call`, with `not`, `and` and `or`."""
    condition = asked_part(call, context)
    above = context.parent(condition)
    while isinstance(above, cst.BooleanOperation) or (
        isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not)
    ):
        condition = above
        above = context.parent(condition)
    return condition


def asked_part(call: cst.Call, context: Workspace) -> cst.BaseExpression:
    """Return the test at `call`: the call, or the comparison of a number of GPUs with 0."""
    above = context.parent(call)
    return (
        above if isinstance(above, cst.Comparison) and any_of(above, context) is not None else call
    )


def first_of(condition: cst.BaseExpression, call: cst.Call, context: Workspace) -> bool:
    """Whether `call` is the first test in `condition`."""
    return next(c for c in context.below(condition, cst.Call) if is_asked(c, context)) is call


def fold(node: cst.BaseExpression, updated: cst.BaseExpression, context: Workspace) -> Answer:
    """Return the remainder of a condition if there is an accelerator.

    Args:
        node: the original condition.
        updated: its updated form, of which the result is a part.
        context: the script.
    """
    if isinstance(node, cst.Call) and is_asked(node, context):
        return True
    if (answer := any_of(node, context)) is not None:
        return answer
    if isinstance(node, cst.UnaryOperation) and isinstance(updated, cst.UnaryOperation):
        inside = fold(node.expression, updated.expression, context)
        if isinstance(inside, bool):
            return not inside
        return updated.with_changes(expression=inside)
    if isinstance(node, cst.BooleanOperation) and isinstance(updated, cst.BooleanOperation):
        absorbing = isinstance(node.operator, cst.Or)  # `x or True`, `x and False`
        left = fold(node.left, updated.left, context)
        right = fold(node.right, updated.right, context)
        if left is absorbing or right is absorbing:
            return absorbing
        if isinstance(left, bool):
            return right if isinstance(right, bool) else parenthesized(right, updated)
        if isinstance(right, bool):
            return parenthesized(left, updated)
        return updated.with_changes(left=left, right=right)
    return updated


def parenthesized(kept: cst.BaseExpression, around: cst.BaseExpression) -> cst.BaseExpression:
    """Return `kept` in the parentheses of the expression around it, if it has none itself.

    A string needs none, also if the parentheses were on lines of their own. A comment in them stays.
    """
    if isinstance(kept, cst.SimpleString) and not kept.prefix:
        comments = (nodes_of(part, cst.Comment) for part in (*around.lpar, *around.rpar))
        if not any(True for comment in comments for _ in comment):
            return kept
    if around.lpar and not kept.lpar:
        return kept.with_changes(lpar=around.lpar, rpar=around.rpar)
    return kept
