"""Code for CUDA alone, in scripts that also run elsewhere: `if shims.device_type() == "cuda":`.

Such code stays unchanged. In the portable style, statements that only CUDA supports are put under such a
test, so that a run on CUDA keeps them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import code

if TYPE_CHECKING:
    from migrate.rewrite.rule import Edit, Rule
    from migrate.rewrite.workspace import Workspace


def is_cuda(context: Workspace, other: str = "==") -> cst.BaseExpression:
    """Return `shims.device_type() == "cuda"`, or the same with another comparison."""
    shims = context.imports.require("shims")
    return cst.parse_expression(f"{shims}.device_type() {other} {context.string('cuda').value}")


def only_on_cuda(rule: Rule, node: cst.Expr | cst.Assign, context: Workspace, why: str) -> Edit:
    """Return the edit that leaves a statement to CUDA, in an `if` of its own.

    Args:
        rule: the rule that makes the edits.
        node: the statement.
        context: the script.
        why: why other devices do not run it, for the message.
    """
    message = f"{code(node)}: on CUDA only, {why}"
    line = context.parent(node)
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    if not alone or not isinstance(line, cst.SimpleStatementLine):
        return rule.edit(node.value, lambda u: or_none(u, context), message, consumes=[node.value])
    test = is_cuda(context)

    def replace(updated: cst.SimpleStatementLine) -> cst.If:
        inside = updated.with_changes(leading_lines=())
        body = cst.IndentedBlock(body=[inside])
        return cst.If(test=test, body=body, leading_lines=updated.leading_lines)

    return rule.edit(line, replace, message, consumes=[node])


def contexts_on_cuda(
    rule: Rule, node: cst.With, names: Container[str | None], context: Workspace
) -> Iterator[Edit]:
    """Yield the edits that leave the contexts `names` of a `with` to CUDA. Elsewhere they do nothing."""
    for item in node.items:
        called = item.item.func if isinstance(item.item, cst.Call) else None
        if item.asname is not None or context.qualified_name(called) not in names:
            continue
        nothing = cst.parse_expression(f"{context.imports.require('contextlib')}.nullcontext()")
        test = is_cuda(context)

        def replace(
            updated: cst.BaseExpression,
            test: cst.BaseExpression = test,
            nothing: cst.BaseExpression = nothing,
        ) -> cst.IfExp:
            return cst.IfExp(test=test, body=updated, orelse=nothing)

        message = f"`with {code(item.item)}`: on CUDA only"
        yield rule.edit(item.item, replace, message, consumes=[item.item])


def or_none(updated: cst.BaseExpression, context: Workspace) -> cst.IfExp:
    """Return `updated if shims.device_type() == "cuda" else None`."""
    return cst.IfExp(test=is_cuda(context), body=updated, orelse=cst.Name("None"))


def and_on_cuda(value: cst.BaseExpression, test: cst.BaseExpression) -> cst.BooleanOperation:
    """Return `value and test`, where `test` asks for CUDA."""
    return cst.BooleanOperation(value, cst.And(), test)
