"""States of random generators that a checkpoint of CUDA may hold."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes_of, targets


def is_made_here(state: cst.BaseExpression, gets: Collection[str], context: Workspace) -> bool:
    """Whether `state` was asked of the generator in the same function: it is one of this device.

    Args:
        state: what is put back.
        gets: the names of the functions that ask for a state.
        context: the script.
    """
    if isinstance(state, cst.Attribute):  # `self.state`, which another method may have kept
        return any(
            code(target.target) == code(state) and _asks(assign, gets, context)
            for assign in context.all_of(cst.Assign)
            for target in assign.targets
        )
    root = state
    while isinstance(root, cst.Attribute | cst.Subscript | cst.Call):
        root = root.func if isinstance(root, cst.Call) else root.value
    if not isinstance(root, cst.Name):
        return False
    around = context.function_around(state) or context.module
    return any(
        any(isinstance(t, cst.Name) and t.value == root.value for t in targets(assign))
        and _asks(assign, gets, context)
        for assign in nodes_of(around, cst.Assign)
    )


def _asks(assign: cst.Assign, gets: Collection[str], context: Workspace) -> bool:
    return any(context.qualified_name(call.func) in gets for call in nodes_of(assign, cst.Call))


def may_be_asked_twice(state: cst.BaseExpression) -> bool:
    """Whether to evaluate `state` twice gives the same: names, attributes, items, `get`."""
    return all(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "get"
        for call in nodes_of(state, cst.Call)
    ) and not any(True for _ in nodes_of(state, cst.NamedExpr))


def guarded(
    line: cst.SimpleStatementLine, state: cst.BaseExpression
) -> tuple[cst.If, cst.SimpleStatementLine]:
    """Return the test that lets only a state of XLA through, without a body, and the line for that."""
    test = cst.parse_expression(f"isinstance({code(state)}, int)")
    why = cst.Comment("# else it is the state of a GPU's generator")
    header = cst.TrailingWhitespace(
        whitespace=cst.SimpleWhitespace("  "), comment=why, newline=cst.Newline()
    )
    return (
        cst.If(
            test,
            cst.IndentedBlock([], header=header),
            leading_lines=line.leading_lines,
        ),
        line.with_changes(leading_lines=[]),
    )
