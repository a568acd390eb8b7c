"""Remove branches and choices that the edits have emptied."""

from __future__ import annotations

import ast
import re

import libcst as cst

from migrate.model.pure import PURE_CALLS
from migrate.syntax.interpreter import syntax_tree
from migrate.syntax.tree import code, last_part, nodes_of

# Calls without effects, by the last part of their name. They may be removed.
ASKS = re.compile(
    r"(is|has|should)_\w+|get_(local_)?rank|(get_|local_)?world_size|isfile|isdir|exists"
    r"|local_device_count|(global|local)_ordinal"
)
# Calls that loops iterate over and that have no effects.
ORDERS = frozenset({"enumerate", "keys", "range", "reversed", "sorted", "values", "zip"})
_NEED_NO_PARENTHESES = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)
OPPOSITE: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
    cst.Is: cst.IsNot,
    cst.IsNot: cst.Is,
    cst.In: cst.NotIn,
    cst.NotIn: cst.In,
}


def without_emptied(node: cst.If) -> cst.If | cst.RemovalSentinel:
    """Return the `if` without the branches whose statements have all been removed.

    An emptied `else` is removed. An emptied `if` is removed with its test, or its `else` stays under the
    opposite test. If the test may have an effect, and above an `elif`, the branch stays, as a `pass`.

    Args:
        node: the `if` after the edits in it.
    """
    orelse = node.orelse
    if isinstance(orelse, cst.Else) and _is_emptied(orelse.body):
        node, orelse = node.with_changes(orelse=None), None
    if not _is_emptied(node.body):
        return node
    if orelse is None:
        return cst.RemoveFromParent() if _only_asks(node.test) else node
    if isinstance(orelse, cst.If):
        return node
    return node.with_changes(
        test=_opposite(node.test),
        whitespace_before_test=cst.SimpleWhitespace(" "),
        body=orelse.body,
        orelse=None,
    )


def without_emptied_loop(
    original: cst.For, updated: cst.For, around: cst.CSTNode
) -> cst.For | cst.RemovalSentinel:
    """Return the loop. Remove it if all its statements were removed and its names are not used elsewhere.

    Args:
        original: the loop of the script.
        updated: the loop after the edits in it.
        around: the function around it, or the module.
    """
    if not _is_emptied(updated.body) or _is_emptied(original.body) or updated.orelse is not None:
        return updated
    calls = nodes_of(updated.iter, cst.Call)
    if not all(_is_question(c.func) or last_part(c.func) in ORDERS for c in calls):
        return updated
    bound = {name.value for name in nodes_of(original.target, cst.Name)}
    inside = sum(name.value in bound for name in nodes_of(original, cst.Name))
    everywhere = sum(name.value in bound for name in nodes_of(around, cst.Name))
    return cst.RemoveFromParent() if everywhere == inside else updated


def without_emptied_try(
    node: cst.Try | cst.TryStar,
) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
    """Return the `try` without the parts that cannot run once its body is empty.

    An empty body raises nothing, so no handler runs. The statements of `else` and `finally` run.

    Args:
        node: the `try` after the edits in it.
    """
    if not _is_emptied(node.body):
        return node
    otherwise = node.orelse.body if node.orelse is not None else None
    finally_ = node.finalbody.body if node.finalbody is not None else None
    kept = [body for body in (otherwise, finally_) if body is not None and not _is_emptied(body)]
    if not kept:
        return cst.RemoveFromParent()
    if len(kept) == 2 and otherwise is not None:
        return node.with_changes(body=otherwise, handlers=[], orelse=None)
    statements = _statements(kept[0])
    above = [*node.leading_lines, *statements[0].leading_lines]
    return cst.FlattenSentinel([statements[0].with_changes(leading_lines=above), *statements[1:]])


def without_same_branches(
    original: cst.If, updated: cst.If
) -> cst.If | cst.FlattenSentinel[cst.BaseStatement]:
    """Return the statements of an `if` whose two branches are equal after the edits, without comments.

    Args:
        original: the `if` of the script, without `elif`.
        updated: the `if` after the edits in it.
    """
    orelse = updated.orelse
    if not isinstance(orelse, cst.Else) or not isinstance(original.orelse, cst.Else):
        return updated
    if _is_emptied(updated.body) or not _only_asks(updated.test):
        return updated
    if _has_comments(orelse) or (
        isinstance(updated.body, cst.IndentedBlock)
        and any(_has_comments(part) for part in (updated.body.header, *updated.body.footer))
    ):
        return updated  # the comments explain when each branch runs
    if not _same(updated.body, orelse.body) or _same(original.body, original.orelse.body):
        return updated
    statements = _statements(updated.body)
    above = [*updated.leading_lines, *getattr(statements[0], "leading_lines", ())]
    return cst.FlattenSentinel([statements[0].with_changes(leading_lines=above), *statements[1:]])


def _has_comments(node: cst.CSTNode) -> bool:
    return next(nodes_of(node, cst.Comment), None) is not None


def _same(block: cst.BaseSuite, other: cst.BaseSuite) -> bool:
    """Whether two blocks are equal, without their comments."""
    dumped = [
        [ast.dump(node) for node in syntax_tree(cst.Module(body=_statements(body)).code).body]
        for body in (block, other)
    ]
    return dumped[0] == dumped[1]


def _statements(
    body: cst.BaseSuite,
) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(body.body)]
    return [
        statement
        for statement in body.body
        if isinstance(statement, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    ]


def without_choice(original: cst.IfExp, updated: cst.IfExp) -> cst.BaseExpression:
    """Return `x` for `x if test else x`, unless the script already has that choice.

    Args:
        original: the choice of the script.
        updated: the choice after the edits in it.
    """
    body, orelse = updated.body, updated.orelse
    untouched = original.body.deep_equals(original.orelse) and original.test.deep_equals(
        updated.test
    )
    if untouched or not body.deep_equals(orelse):
        return updated
    if not _only_asks(updated.test):
        return updated
    if isinstance(body, _NEED_NO_PARENTHESES) and not _has_lines(updated):
        return body
    return body.with_changes(lpar=[*updated.lpar, *body.lpar], rpar=[*body.rpar, *updated.rpar])


def _has_lines(node: cst.BaseExpression) -> bool:
    """Whether the parentheses around `node` hold line breaks."""
    return any(
        isinstance(space, cst.ParenthesizedWhitespace)
        for space in (
            *(par.whitespace_after for par in node.lpar),
            *(par.whitespace_before for par in node.rpar),
        )
    )


def _is_emptied(body: cst.BaseSuite) -> bool:
    return not body.body


def _only_asks(test: cst.BaseExpression) -> bool:
    """Whether evaluating `test` changes nothing."""
    if any(nodes_of(test, cst.NamedExpr)) or any(nodes_of(test, cst.Await)):
        return False
    return all(_is_question(call.func) for call in nodes_of(test, cst.Call))


def _is_question(function: cst.BaseExpression) -> bool:
    name = function.attr.value if isinstance(function, cst.Attribute) else code(function)
    return name in PURE_CALLS or ASKS.fullmatch(name) is not None


def _opposite(test: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        comparison = test.comparisons[0]
        operator = OPPOSITE.get(type(comparison.operator))
        if operator is not None:
            return test.with_changes(comparisons=[comparison.with_changes(operator=operator())])
    if not test.lpar and isinstance(test, cst.BooleanOperation | cst.IfExp | cst.Lambda):
        test = test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(operator=cst.Not(), expression=test)
