"""Compound statements that go while their statements stay."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.rewrite.rule import Replacement


def body_of(node: cst.If | cst.With, body: cst.BaseSuite) -> Replacement:
    """Return the statements of `body`, to stand in the place of the compound statement `node`.

    The comments above and beside the head of the compound statement stay above the first of them, those
    at the end of the block below the last.
    """
    if isinstance(body, cst.SimpleStatementSuite):
        if not body.body:
            return cst.RemoveFromParent()
        line = cst.SimpleStatementLine(body.body, leading_lines=node.leading_lines)
        return cst.FlattenSentinel([line])
    block = cst.ensure_type(body, cst.IndentedBlock)
    statements = [s for s in block.body if isinstance(s, cst.BaseStatement)]
    if not statements:
        return cst.RemoveFromParent()
    above = [*node.leading_lines]
    if block.header.comment is not None:
        above.append(cst.EmptyLine(comment=block.header.comment))
    first = statements[0]
    own = [line for line in _lines(first) if line.comment is not None]
    statements[0] = first.with_changes(leading_lines=[*above, *own])
    footer = [line for line in block.footer if line.comment is not None]
    if footer:
        statements.append(cst.SimpleStatementLine([], leading_lines=footer))
    return cst.FlattenSentinel(statements)


def _lines(statement: cst.BaseStatement) -> Iterable[cst.EmptyLine]:
    return list(getattr(statement, "leading_lines", ()))


def without_items(node: cst.With, gone: Iterable[int]) -> Replacement:
    """Return the `with` without some of its items; without any, the statements of its body."""
    dropped = set(gone)
    kept = [item for index, item in enumerate(node.items) if index not in dropped]
    if not kept:
        return body_of(node, node.body)
    if len(node.items) - 1 in dropped:
        kept[-1] = kept[-1].with_changes(comma=node.items[-1].comma)
    return node.with_changes(items=kept)
