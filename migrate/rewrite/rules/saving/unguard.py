"""Edits that take statements out of a test of the rank, or put statements below one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from migrate.check.hazard import Severity
from migrate.reading.replicas.first_replica import Rest, is_local, joined, parts
from migrate.rewrite.edits.branch import comments_at_end
from migrate.rewrite.edits.lift import marked, split
from migrate.rewrite.edits.nodes import keyword_arg, split_blank
from migrate.syntax.tree import code, nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.rule import Edit, Rule, RuleFinding
    from migrate.rewrite.workspace import Workspace

Run = list[cst.BaseStatement]
FORKED = "# The other replicas draw their next random numbers as if they had not run this."
SEPARATOR = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def without_guard(
    rule: Rule, context: Workspace, guard: cst.If, rest: Rest, out: Sequence[cst.BaseStatement]
) -> Iterator[Edit | RuleFinding]:
    """Yield the edits that take the statements `out` of the branch of `guard` out of it.

    Where they draw with torch's generator on the host, the other replicas put theirs back. Draws of other
    libraries are reported.
    """
    message = f"runs on all replicas, no longer below `if {code(guard.test)}:`"
    wrong = f"all replicas must run this for the save, but only some pass `if {code(guard.test)}:`"
    for statement in out:
        draw = _draw(statement, context)
        if draw is not None and context.calls.shifting[context.place(draw)]:
            yield rule.edit(statement, _drawn_by_first(rest, context), message, wrong=wrong)
            continue
        yield rule.edit(statement, marked, message, wrong=wrong)
        if draw is not None:
            yield from rule.report(
                draw,
                f"{code(draw.func)} draws random numbers, now on all replicas: what the others draw after it "
                "is no longer what the original draws; give it a generator of its own to keep that",
                Severity.INFO,
            )
    which = [any(part is other for other in rest.others) for part in parts(guard.test)]

    def replace(updated: cst.If) -> cst.If | cst.FlattenSentinel[cst.BaseStatement]:
        tests = list(zip(parts(updated.test), which, strict=True))
        asked = joined(tuple(test for test, is_other in tests if not is_other))
        others = tuple(test for test, is_other in tests if is_other)
        body = cst.ensure_type(updated.body, cst.IndentedBlock)

        def keeps(run: Run) -> cst.BaseStatement:
            return updated.with_changes(
                test=asked,
                body=body.with_changes(body=_first_tight(run), footer=()),
                leading_lines=(),
            )

        statements = split(list(body.body), keeps)
        if others:
            inside = body.with_changes(body=_first_tight(statements))
            return updated.with_changes(test=joined(others), body=inside)
        kept = any(isinstance(s, cst.If) and s.test is asked for s in statements)
        comment = None if kept else body.header.comment
        above = [*updated.leading_lines, *([cst.EmptyLine(comment=comment)] if comment else [])]
        first = statements[0]
        lines = split_blank(getattr(first, "leading_lines", ()))[1]
        statements[0] = first.with_changes(leading_lines=[*above, *lines])
        return cst.FlattenSentinel([*statements, *comments_at_end(body)])

    yield rule.edit(guard, replace, message, wrong=wrong)


def _draw(statement: cst.BaseStatement, context: Workspace) -> cst.Call | None:
    """Return a call of `statement` that draws on the host: first of those that not only torch makes."""
    draws = context.calls.shifting
    calls = [c for c in context.below(statement, cst.Call) if context.place(c) in draws]
    return min(calls, key=lambda call: draws[context.place(call)], default=None)


def _drawn_by_first(
    rest: Rest, context: Workspace
) -> Callable[[cst.BaseStatement], cst.BaseStatement]:
    """Return the edit of a statement after which the other replicas draw as if they had not run it."""
    torch = context.imports.require("torch")
    first = _first(rest, context)
    fork = cst.Call(
        cst.parse_expression(f"{torch}.random.fork_rng"),
        [
            keyword_arg("devices", cst.List([])).with_changes(comma=SEPARATOR),
            keyword_arg("enabled", cst.UnaryOperation(cst.Not(), first)),
        ],
    )

    def replace(updated: cst.BaseStatement) -> cst.BaseStatement:
        lines = getattr(updated, "leading_lines", ())
        comment = cst.EmptyLine(comment=cst.Comment(FORKED))
        inside = cst.IndentedBlock([updated.with_changes(leading_lines=())])
        return marked(cst.With([cst.WithItem(fork)], inside, leading_lines=[*lines, comment]))

    return replace


def alone(
    rule: Rule,
    context: Workspace,
    guard: cst.If,
    rest: Rest,
    values: Sequence[cst.BaseExpression],
) -> Iterator[Edit]:
    """Yield the edits by which only the replicas that pass `guard` compute `values`; the others have None."""
    message = f"computed below `if {code(guard.test)}:`, where alone it is used"
    for value in values:
        yield rule.edit(value, or_none(_first(rest, context)), message)


def or_none(test: cst.BaseExpression) -> Callable[[cst.BaseExpression], cst.IfExp]:
    """Return the edit of an expression by which only the replicas that pass `test` compute it."""

    def replace(updated: cst.BaseExpression) -> cst.IfExp:
        return cst.IfExp(test=test.deep_clone(), body=updated, orelse=cst.Name("None"))

    return replace


def _first(rest: Rest, context: Workspace) -> cst.BaseExpression:
    """Return an expression that is true on the replica that passes `rest`: the script's own, if it stays."""
    test = joined(rest.asked)
    names = (context.qualified_name(call.func) for call in context.below(test, cst.Call))
    if any(nodes_of(test, cst.Subscript)) or any(name is not None for name in names):
        return context.vocabulary.expression(
            "is first here" if is_local(rest.asked) else "is first"
        )
    copy = test.deep_clone()
    if isinstance(copy, cst.BooleanOperation) and not copy.lpar:
        return copy.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return copy


def keep_to_first(
    test: cst.BaseExpression,
) -> Callable[[cst.IndentedBlock], cst.IndentedBlock]:
    """Return the edit of a block that puts its marked statements below `if` the first replica."""

    def keeps(run: Run) -> cst.BaseStatement:
        only = run[0] if len(run) == 1 else None
        if isinstance(only, cst.If) and only.orelse is None:
            return only.with_changes(test=cst.BooleanOperation(only.test, cst.And(), test))
        above, inside = split_blank(getattr(run[0], "leading_lines", ()))
        body = [run[0].with_changes(leading_lines=inside), *run[1:]]
        return cst.If(test=test, body=cst.IndentedBlock(body=body), leading_lines=above)

    def replace(updated: cst.IndentedBlock) -> cst.IndentedBlock:
        body = split(list(updated.body), keeps, marked_stay=True)
        return updated.with_changes(body=body)

    return replace


def _first_tight(run: Run) -> Run:
    """Return `run` with no blank lines above its first statement."""
    lines = split_blank(getattr(run[0], "leading_lines", ()))[1]
    return [run[0].with_changes(leading_lines=lines), *run[1:]]
