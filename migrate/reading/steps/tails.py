"""Tails of an `if` or a `with` that are no part of the step: logging after the optimizer's step."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.reading.steps.statement import Statement
from migrate.syntax.tree import code, nodes_of


class Tail:
    """Tail of an `if` or `with` that leaves the step: logging after the optimizer's step.

    Args:
        node: the `if` or `with`.
        block: its body.
        statements: the statements at the end of the body that leave.
    """

    def __init__(
        self,
        node: cst.If | cst.With,
        block: cst.IndentedBlock,
        statements: Sequence[cst.BaseStatement],
    ) -> None:
        self.node = node
        self.block = block
        self.statements = statements
        kept = [s for s in block.body if s not in statements]
        self.rest = node.with_changes(body=block.with_changes(body=kept))


def tail(statement: Statement) -> Tail | None:
    """Return the tail of `statement` that may leave the step, from the first statement that stays outside."""
    node = statement.node
    if not isinstance(node, cst.If | cst.With) or not isinstance(node.body, cst.IndentedBlock):
        return None
    if isinstance(node, cst.If) and (node.orelse is not None or not _is_pure(node.test)):
        return None
    inner = [Statement(s, statement.values, statement.context) for s in node.body.body]
    trains = [i for i, s in enumerate(inner) if s.effect or s.averages or s.clears_gradients]
    last = max(trains, default=-1)
    if isinstance(node, cst.If) and last < 0:
        return None  # an `if` without a part of the step moves as a whole
    start = next((i for i in range(last + 1, len(inner)) if inner[i].outside is not None), None)
    if start is None or start == 0:
        return None
    leaving = inner[start:]
    if isinstance(node, cst.With) and any(map(_computes, leaving)):
        return None  # values computed there are computed in the context
    return Tail(node, node.body, [s.node for s in leaving])


def _computes(statement: Statement) -> bool:
    """Whether `statement` is, or has in a branch, a part of the step: `if kind: loss = model(x)`."""
    if statement.outside is None:
        return True
    lines = nodes_of(statement.node, cst.SimpleStatementLine)
    inner = (Statement(line, statement.values, statement.context) for line in lines)
    compound = isinstance(statement.node, cst.BaseCompoundStatement)
    return compound and any(
        statement.outside is None and statement.on_device for statement in inner
    )


def _is_pure(test: cst.BaseExpression) -> bool:
    """Whether evaluating `test` twice gives the same answer: no calls but `len`."""
    return all(code(call.func) == "len" for call in nodes_of(test, cst.Call))
