"""Rebuild lists of statements so that comments of removed statements stay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import libcst as cst

from migrate.rewrite.edit import StatementRun, Wrap
from migrate.rewrite.edits.emptied import (
    without_choice,
    without_emptied,
    without_emptied_loop,
    without_emptied_try,
    without_same_branches,
)
from migrate.rewrite.edits.nodes import split_blank

SmallStatements = TypeVar("SmallStatements", cst.SimpleStatementLine, cst.SimpleStatementSuite)


class StatementTransformer(cst.CSTTransformer):
    """Rebuilds lists of statements: comments above a removed statement stay, runs are wrapped."""

    def __init__(self, wraps: Sequence[Wrap] = ()) -> None:
        super().__init__()
        self._wraps = {id(wrap.block): wrap for wrap in wraps}
        self._results: dict[int, list[cst.BaseStatement]] = {}
        self._elifs: set[int] = set()
        self._around: list[
            cst.CSTNode
        ] = []  # the module, and the functions around the visited node

    def replace(self, original: cst.CSTNode, updated: cst.CSTNode) -> object:
        """Return the replacement of `updated`, the updated form of `original`."""
        raise NotImplementedError

    def enter(self, node: cst.CSTNode) -> None:
        """Record that `node` is visited, with its contents."""
        if isinstance(node, cst.Module | cst.FunctionDef):
            self._around.append(node)
        if isinstance(node, cst.If) and isinstance(node.orelse, cst.If):
            self._elifs.add(id(node.orelse))

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        """Replace the node, after rebuilding it if it is a list of statements."""
        if self._around and self._around[-1] is original_node:
            self._around.pop()
        if isinstance(original_node, cst.Module | cst.IndentedBlock):
            updated_node = self._rebuilt(original_node, updated_node)
        if isinstance(original_node, cst.SimpleStatementLine) and not updated_node.body:
            result: object = cst.RemoveFromParent()
        else:
            if isinstance(original_node, cst.SimpleStatementLine | cst.SimpleStatementSuite):
                updated_node = _without_last_semicolon(original_node, updated_node)
            result = self.replace(original_node, updated_node)
        if isinstance(result, cst.If):
            result = without_emptied(result)
            whole = isinstance(original_node, cst.If) and id(original_node) not in self._elifs
            if whole and isinstance(result, cst.If):
                result = without_same_branches(original_node, result)
        elif isinstance(result, cst.For) and isinstance(original_node, cst.For) and self._around:
            result = without_emptied_loop(original_node, result, self._around[-1])
        elif isinstance(result, cst.Try | cst.TryStar):
            result = without_emptied_try(result)
        elif isinstance(original_node, cst.IfExp) and isinstance(result, cst.IfExp):
            result = without_choice(original_node, result)
        if isinstance(original_node, cst.BaseStatement) and not isinstance(result, cst.Else):
            self._results[id(original_node)] = _as_list(result)
        return result

    def _rebuilt(
        self, original: cst.Module | cst.IndentedBlock, updated: cst.Module | cst.IndentedBlock
    ) -> cst.Module | cst.IndentedBlock:
        wrap = self._wraps.get(id(original))
        body: list[cst.BaseStatement] = []
        pending: list[cst.EmptyLine] = []
        ends: list[int] = []  # for each statement of the run, its updated statements in `body`
        for statement in original.body:
            if wrap is not None and statement is wrap.first:
                ends = [len(body)]
            new = self._results.pop(id(statement), [statement])
            left = bool(new) and _is_empty(new[-1])
            below = _lines_above(new.pop()) if left else ()
            if not new and not left:
                pending.extend(_lines_above(statement))
            elif not new:
                pass  # the remaining lines above it are in `below`
            elif body or statement is original.body[0]:
                new[0] = new[0].with_changes(leading_lines=_joined(pending, _lines_above(new[0])))
                pending = []
            else:  # now the first of its block, so without blank lines above it
                lines = _joined(pending, _lines_above(new[0]))
                new[0] = new[0].with_changes(leading_lines=split_blank(lines)[1])
                pending = []
            body.extend(new)
            pending.extend(below)
            ends.append(len(body))
            if wrap is not None and statement is wrap.last:
                parts = [body[start:end] for start, end in pairwise(ends)]
                created = wrap.make(StatementRun(parts))
                body[ends[0] :] = [created] if isinstance(created, cst.BaseStatement) else created
        comments = [line for line in pending if line.comment is not None]
        return updated.with_changes(body=body, footer=[*comments, *updated.footer])


def _without_last_semicolon(original: SmallStatements, updated: SmallStatements) -> SmallStatements:
    """Return statements of one line without the semicolon before removed statements."""
    removed = len(updated.body) < len(original.body)
    if not removed or not updated.body:
        return updated
    *before, last = updated.body
    last = last.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
    return updated.with_changes(body=[*before, last])


def _is_empty(statement: cst.BaseStatement) -> bool:
    """Whether `statement` stands only for the comment lines at the end of a block."""
    return isinstance(statement, cst.SimpleStatementLine) and not statement.body


def _as_list(result: object) -> list[cst.BaseStatement]:
    if isinstance(result, cst.RemovalSentinel):
        return []
    if isinstance(result, cst.FlattenSentinel):
        return list(result)
    assert isinstance(result, cst.BaseStatement)
    return [result]


def _lines_above(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    """Return the blank lines and comments above `statement`."""
    return getattr(statement, "leading_lines", ())


def _joined(above: Sequence[cst.EmptyLine], below: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Join the lines above a removed statement and above the next one, without doubled blank lines."""
    joined = list(above)
    while joined and joined[-1].comment is None and below and below[0].comment is None:
        joined.pop()
    return [*joined, *below]


class KeepingComments(StatementTransformer):
    """Runs another transformer and keeps the comments of removed statements."""

    def __init__(self, inner: cst.CSTTransformer) -> None:
        super().__init__()
        self._inner = inner

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Visit what the other transformer visits."""
        return self._inner.on_visit(node)

    def replace(self, original: cst.CSTNode, updated: cst.CSTNode) -> object:
        """Return the result of the other transformer for the node."""
        return self._inner.on_leave(original, updated)
