"""Code that is for CUDA alone, in scripts that also run elsewhere: `if shims.device_type() == "cuda":`.

Such code stays as it is. In the portable style it is also what becomes of statements that only CUDA
knows: the run on CUDA keeps them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import code, nodes, string_value

if TYPE_CHECKING:
    from migrate.reading.script import Context
    from migrate.rewrite.rule import Edit, Rule

ASKED = frozenset({"shims.device_type"})
# Of torch.cuda, what does nothing where there is no GPU (measured, torch 2.9): the portable style keeps it.
HARMLESS = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "empty_cache",
        "get_rng_state_all",
        "is_initialized",
        "manual_seed",
        "manual_seed_all",
        "memory.empty_cache",
        "seed",
        "seed_all",
        "set_rng_state_all",
        "stream",  # of None
    )
)


def guarded(context: Context) -> frozenset[int]:
    """Return the ids of the nodes that only CUDA runs, and of the questions whether this is CUDA."""
    if not context.references("shims"):
        return frozenset()
    found: set[int] = set()
    for node in context.nodes:
        for root in _for_cuda(node, context):
            found.update(id(below) for below in nodes(root))
    return frozenset(found)


def _for_cuda(node: cst.CSTNode, context: Context) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.Comparison) and asks_for_device_type(node, context):
        yield node
    elif isinstance(node, cst.If | cst.IfExp) and _is_cuda(node.test, context):
        yield node.body
    elif isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
        if _is_cuda(node.left, context):
            yield node.right
    elif isinstance(node, cst.BooleanOperation) and _is_cuda(node.left, context, cst.NotEqual):
        yield node.right


def asks_for_device_type(node: cst.Comparison, context: Context) -> bool:
    """Whether `node` compares `shims.device_type()`, or `shims.device().type`, with something."""
    left = node.left
    if isinstance(left, cst.Attribute) and left.attr.value == "type":
        left = left.value
        return isinstance(left, cst.Call) and context.qualified_name(left.func) == "shims.device"
    return isinstance(left, cst.Call) and context.qualified_name(left.func) in ASKED


def _is_cuda(
    test: cst.BaseExpression, context: Context, operator: type[cst.BaseCompOp] = cst.Equal
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


def is_cuda(context: Context, other: str = "==") -> cst.BaseExpression:
    """Return `shims.device_type() == "cuda"`, or the same with another comparison."""
    shims = context.imports.require("shims")
    return cst.parse_expression(f"{shims}.device_type() {other} {context.string('cuda').value}")


def only_on_cuda(rule: Rule, node: cst.Expr | cst.Assign, context: Context, why: str) -> Edit:
    """Return the edit that leaves a statement to CUDA, in an `if` of its own.

    Args:
        rule: in whose name.
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
    rule: Rule, node: cst.With, names: Container[str | None], context: Context
) -> Iterator[Edit]:
    """Yield the edits that leave the contexts `names` of a `with` to CUDA; elsewhere they do nothing."""
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


def or_none(updated: cst.BaseExpression, context: Context) -> cst.IfExp:
    """Return `updated if shims.device_type() == "cuda" else None`."""
    return cst.IfExp(test=is_cuda(context), body=updated, orelse=cst.Name("None"))


def and_on_cuda(value: cst.BaseExpression, test: cst.BaseExpression) -> cst.BooleanOperation:
    """Return `value and test`, `test` being whether this is CUDA."""
    loose = isinstance(value, cst.BooleanOperation | cst.IfExp | cst.Lambda) and not value.lpar
    if loose:
        value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.BooleanOperation(value, cst.And(), test)
