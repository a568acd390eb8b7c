"""Remove compound statements and keep the statements in them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.rule import Edit, Replacement, Rule
from migrate.syntax.tree import code

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace


def body_of(node: cst.If | cst.With, body: cst.BaseSuite) -> Replacement:
    """Return the statements of `body`, which replace the compound statement `node`.

    Comments above and beside the head of the compound statement stay above the first statement. Comments at
    the end of the block stay below the last one.
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
    return cst.FlattenSentinel([*statements, *comments_at_end(block)])


def comments_at_end(block: cst.IndentedBlock) -> list[cst.SimpleStatementLine]:
    """Return the comments at the end of `block` as a line without a statement; empty if it has none."""
    lines = [line for line in block.footer if line.comment is not None]
    return [cst.SimpleStatementLine([], leading_lines=lines)] if lines else []


def _lines(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    return list(getattr(statement, "leading_lines", ()))


def removed_with_comment(
    rule: Rule, node: cst.CSTNode, names: Iterable[str], message: str, context: Workspace
) -> Edit:
    """Return the edit that removes a statement, and the comment above it if it is about `names`.

    Args:
        rule: the rule that makes the edits.
        node: a compound statement or a simple one. The `else` of an `if` stays.
        names: removed names, as the script writes them.
        message: message for the user.
        context: the script.
    """
    if isinstance(node, cst.If) and isinstance(node.orelse, cst.Else):
        consumes: list[cst.CSTNode] = [node.test, node.body]
        return rule.edit(node, _else_of, message, consumes=consumes)
    line = node if isinstance(node, cst.BaseStatement) else context.parent(node)
    if not isinstance(line, cst.BaseStatement) or (
        isinstance(line, cst.SimpleStatementLine) and len(line.body) > 1
    ):
        return rule.edit(node, lambda _: cst.RemoveFromParent(), message, consumes=[node])
    words = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names))
    left = left_above(line, words)
    return rule.edit(line, lambda _: left, message, consumes=[line])


def left_above(
    line: cst.BaseStatement, words: re.Pattern[str]
) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return the remaining lines above the statement `line`, without a comment about `words`."""
    kept = _lines(line)
    at = len(kept)
    while at and kept[at - 1].comment is not None:
        at -= 1
    if any(words.search(line.comment.value) for line in kept[at:] if line.comment is not None):
        kept = kept[:at]
    # The line is not removed as a whole, because all lines above it would then stay.
    return cst.FlattenSentinel([cst.SimpleStatementLine([], leading_lines=kept)])


def _else_of(updated: cst.CSTNode) -> Replacement:
    node = cst.ensure_type(updated, cst.If)
    return body_of(node, cst.ensure_type(node.orelse, cst.Else).body)


def unwrapped(
    rule: Rule, node: cst.With, contexts: Container[str], why: str, context: Workspace
) -> Iterator[Edit]:
    """Yield the edit that removes the context managers `contexts` of a `with` and keeps its body.

    Args:
        rule: the rule that makes the edits.
        node: the `with`.
        contexts: qualified names. A context manager whose result gets a name stays.
        why: reason for the user.
        context: the script.
    """
    gone = [
        index
        for index, item in enumerate(node.items)
        if isinstance(item.item, cst.Call)
        and context.qualified_name(item.item.func) in contexts
        and item.asname is None
    ]
    if gone:
        shown = ", ".join(code(node.items[index].item) for index in gone)
        yield rule.edit(
            node,
            lambda updated: without_items(updated, gone),
            f"remove `with {shown}`: {why}",
            consumes=[node.items[index] for index in gone],
        )


def without_items(node: cst.With, gone: Iterable[int]) -> Replacement:
    """Return the `with` without some of its items. If none remains, return the statements of its body."""
    dropped = set(gone)
    kept = [item for index, item in enumerate(node.items) if index not in dropped]
    if not kept:
        return body_of(node, node.body)
    if len(node.items) - 1 in dropped:
        kept[-1] = kept[-1].with_changes(comma=node.items[-1].comma)
    return node.with_changes(items=kept)


def is_plain_question(test: cst.BaseExpression) -> bool:
    """Whether evaluating the test has no effect: names and attributes, compared or negated."""
    if isinstance(test, cst.Name | cst.Attribute | cst.BaseNumber | cst.BaseString):
        return True
    if isinstance(test, cst.UnaryOperation):
        return is_plain_question(test.expression)
    if isinstance(test, cst.BooleanOperation):
        return is_plain_question(test.left) and is_plain_question(test.right)
    if isinstance(test, cst.Comparison):
        sides = [test.left, *(target.comparator for target in test.comparisons)]
        return all(is_plain_question(side) for side in sides)
    return False
