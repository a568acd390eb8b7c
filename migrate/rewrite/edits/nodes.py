"""New nodes from old ones: a call with other arguments, a function with one statement more."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.reading.tree.tree import is_docstring


def with_args(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
    """Return `call` with the arguments `args`, commas between them as the author set them.

    A trailing comma, and with it one argument a line, stays where it was, and so does a closing bracket
    on a line of its own, and a line break behind an argument that goes from the end of its line.
    """
    places = {id(arg): index for index, arg in enumerate(call.args)}
    trailing = call.args[-1].comma if call.args else cst.MaybeSentinel.DEFAULT
    closing = call.args[-1].whitespace_after_arg if call.args else None
    between = next(
        (_without_comment(arg.comma) for arg in call.args[:-1] if isinstance(arg.comma, cst.Comma)),
        _comma_of_one(call),
    )
    last = len(args) - 1
    separated = []
    for index, arg in enumerate(args):
        if index == last:
            comma: cst.Comma | cst.MaybeSentinel = trailing
        else:
            own = arg.comma if isinstance(arg.comma, cst.Comma) else None
            is_trailing = own is trailing
            comma = own if own is not None and not is_trailing else between
            here, there = places.get(id(arg), -1), places.get(id(args[index + 1]), -1)
            gone = call.args[there - 1].comma if 0 <= here < there - 1 else None
            if gone is not None and _breaks(gone) and not _breaks(comma):
                comma = gone
        arg = arg.with_changes(comma=comma)
        if closing is not None and index == last:
            arg = arg.with_changes(whitespace_after_arg=closing)
        elif arg.whitespace_after_arg is closing:
            arg = arg.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
        separated.append(arg)
    return call.with_changes(args=separated)


def _breaks(comma: cst.Comma | cst.MaybeSentinel) -> bool:
    """Whether the line ends behind `comma`."""
    after = comma.whitespace_after if isinstance(comma, cst.Comma) else None
    return isinstance(after, cst.ParenthesizedWhitespace)


def _comma_of_one(call: cst.Call) -> cst.Comma:
    """Return what comes after the one argument of `call` when it gets another: a line break if it has
    lines of its own, with the closing bracket below it.
    """
    above = call.whitespace_before_args
    only = call.args[0] if call.args else None
    ends: list[cst.CSTNode] = [only.whitespace_after_arg] if only is not None else []
    if only is not None and isinstance(only.comma, cst.Comma):
        ends.append(only.comma.whitespace_after)
    hangs = isinstance(above, cst.ParenthesizedWhitespace) and any(
        isinstance(end, cst.ParenthesizedWhitespace) for end in ends
    )
    return _without_comment(
        cst.Comma(whitespace_after=above if hangs else cst.SimpleWhitespace(" "))
    )


def _without_comment(comma: cst.Comma) -> cst.Comma:
    """Return `comma` with the line break after it, but not with the comment that stands there."""
    after = comma.whitespace_after
    if isinstance(after, cst.ParenthesizedWhitespace):
        first = after.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
        after = after.with_changes(first_line=first, empty_lines=())
    return comma.with_changes(whitespace_after=after)


def keyword_arg(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Return the argument `name=value`, with no spaces around the sign."""
    no_space = cst.SimpleWhitespace("")
    return cst.Arg(
        keyword=cst.Name(name),
        value=value,
        equal=cst.AssignEqual(whitespace_before=no_space, whitespace_after=no_space),
    )


def without(value: cst.BaseExpression, index: int) -> cst.BaseExpression:
    """Return the tuple, list or dictionary `value` without one element; a tuple of one keeps its comma."""
    assert isinstance(value, cst.Tuple | cst.List | cst.Dict)
    kept = list(value.elements)
    last_comma = kept[-1].comma
    del kept[index]
    if kept and index == len(kept):
        kept[-1] = kept[-1].with_changes(comma=last_comma)
    if isinstance(value, cst.Tuple) and len(kept) == 1:
        kept[0] = kept[0].with_changes(comma=cst.Comma())
    return value.with_changes(elements=kept)


def insert_first(function: cst.FunctionDef, statement: cst.BaseStatement) -> cst.FunctionDef:
    """Return `function` with `statement` before the others of its body, after the docstring.

    After `global` and `nonlocal`, too, which may not follow a use of their names.
    """
    return function.with_changes(body=first_in(function.body, statement))


def first_in(body: cst.BaseSuite, statement: cst.BaseStatement) -> cst.IndentedBlock:
    """Return the body of a statement with `statement` before the others, as `insert_first` does."""
    if not isinstance(body, cst.IndentedBlock):  # def f(): pass
        line = cst.SimpleStatementLine(
            body=list(cst.ensure_type(body, cst.SimpleStatementSuite).body)
        )
        return cst.IndentedBlock(body=[statement, line])
    at = 1 if is_docstring(body.body[0]) else 0
    while at < len(body.body) and _declares(body.body[at]):
        at += 1
    return body.with_changes(body=[*body.body[:at], statement, *body.body[at:]])


def _declares(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], cst.Global | cst.Nonlocal
    )


def split_blank(
    lines: Sequence[cst.EmptyLine],
) -> tuple[Sequence[cst.EmptyLine], Sequence[cst.EmptyLine]]:
    """Split the lines above a statement into the blank ones at the top and the rest."""
    at = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
    return lines[:at], lines[at:]
