"""Conditions that ask whether there is a GPU, and what is left of them when there is a TPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.catalogue.entry import names
from migrate.reading.catalogue.torch_cuda import AVAILABLE, BFLOAT16
from migrate.reading.tree.tree import nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

ASKED = names(*AVAILABLE, *BFLOAT16)

# What a condition comes to: decided, or what is left of it.
Answer = bool | cst.BaseExpression


def is_asked(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` asks for an accelerator that XLA is not, in the words of CUDA."""
    return context.qualified_name(call.func) in ASKED


def whole_condition(call: cst.Call, context: Workspace) -> cst.BaseExpression:
    """Return the whole condition that `call` is a part of: `not`, `and` and `or` included."""
    condition: cst.BaseExpression = call
    above = context.parent(condition)
    while isinstance(above, cst.BooleanOperation) or (
        isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not)
    ):
        condition = above
        above = context.parent(condition)
    return condition


def first_of(condition: cst.BaseExpression, call: cst.Call, context: Workspace) -> bool:
    """Whether `call` is the first question in `condition`."""
    return next(c for c in nodes_of(condition, cst.Call) if is_asked(c, context)) is call


def fold(node: cst.BaseExpression, updated: cst.BaseExpression, context: Workspace) -> Answer:
    """Return what is left of a condition when there is an accelerator.

    Args:
        node: the original condition.
        updated: its updated form, from which the result is taken.
        context: the script.
    """
    if isinstance(node, cst.Call) and is_asked(node, context):
        return True
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
            return right if isinstance(right, bool) else parenthesised(right, updated)
        if isinstance(right, bool):
            return parenthesised(left, updated)
        return updated.with_changes(left=left, right=right)
    return updated


def parenthesised(kept: cst.BaseExpression, around: cst.BaseExpression) -> cst.BaseExpression:
    """Return `kept` in the parentheses of what it was a part of, if it has none of its own.

    A string needs none, also where they stood on lines of their own; a comment in them stays.
    """
    if isinstance(kept, cst.SimpleString) and not kept.prefix:
        comments = (nodes_of(part, cst.Comment) for part in (*around.lpar, *around.rpar))
        if not any(True for found in comments for _ in found):
            return kept
    if around.lpar and not kept.lpar:
        return kept.with_changes(lpar=around.lpar, rpar=around.rpar)
    return kept
