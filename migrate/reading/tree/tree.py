"""Small questions to a concrete syntax tree that several rules ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import libcst as cst

from migrate.reading.tree.walk import code_nodes
from migrate.reading.tree.walk import nodes as nodes
from migrate.reading.tree.walk import nodes_of as nodes_of

_EMPTY = cst.Module(body=[])
TARGETED = frozenset(
    {
        cst.AssignTarget,
        cst.AugAssign,
        cst.AnnAssign,
        cst.NamedExpr,
        cst.For,
        cst.CompFor,
        cst.AsName,
    }
)


def targets(root: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what is assigned to at and below `root`, tuples taken apart: names, attributes, subscripts."""
    for node in code_nodes(root):
        if type(node) in TARGETED:
            target = getattr(node, "target", None) or node.name  # type: ignore[attr-defined]
            yield from _flat(target)


def _flat(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _flat(element.value)
    else:
        yield target


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """Return the argument that `call` passes by the keyword `name`."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    return None


def bind(call: cst.Call, parameters: Sequence[str]) -> dict[str, cst.Arg] | None:
    """Return which argument goes to which of `parameters`, names in the order of the signature.

    None where that cannot be read off the call: `*args`, `**kwargs`, too many arguments, or a keyword
    that is no parameter.
    """
    bound: dict[str, cst.Arg] = {}
    for index, arg in enumerate(call.args):
        if arg.star:
            return None
        if arg.keyword is not None:
            name = arg.keyword.value
            if name not in parameters:
                return None
        elif index < len(parameters):
            name = parameters[index]
        else:
            return None
        bound[name] = arg
    return bound


def is_dotted_name(node: cst.CSTNode) -> bool:
    """Whether `node` is a name, or attributes of a name: `a.b.c`, not `a().c`."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def is_attribute_of_self(node: cst.CSTNode | None) -> TypeGuard[cst.Attribute]:
    """Whether `node` is `self.NAME`."""
    return (
        isinstance(node, cst.Attribute)
        and isinstance(node.value, cst.Name)
        and node.value.value == "self"
    )


def with_args(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
    """Return `call` with the arguments `args`, commas between them as the author set them.

    A trailing comma, and with it one argument a line, stays where it was, and so does a closing bracket
    on a line of its own.
    """
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
        arg = arg.with_changes(comma=comma)
        if closing is not None and index == last:
            arg = arg.with_changes(whitespace_after_arg=closing)
        elif arg.whitespace_after_arg is closing:
            arg = arg.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
        separated.append(arg)
    return call.with_changes(args=separated)


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


def elements(arg: cst.Arg) -> list[cst.BaseElement]:
    """Return the elements of the tuple or list that `arg` passes; none for anything else."""
    value = arg.value
    return list(value.elements) if isinstance(value, cst.Tuple | cst.List) else []


def without(value: cst.BaseExpression, index: int) -> cst.BaseExpression:
    """Return the tuple or list `value` without one element; a tuple of one keeps its comma."""
    assert isinstance(value, cst.Tuple | cst.List)
    kept = list(value.elements)
    last_comma = kept[-1].comma
    del kept[index]
    if kept and index == len(kept):
        kept[-1] = kept[-1].with_changes(comma=last_comma)
    if isinstance(value, cst.Tuple) and len(kept) == 1:
        kept[0] = kept[0].with_changes(comma=cst.Comma())
    return value.with_changes(elements=kept)


def string_value(node: cst.CSTNode | None) -> str | None:
    """Return the value of a plain string literal, else None."""
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        value = node.evaluated_value
        return value if isinstance(value, str) else None
    return None


def code(node: cst.CSTNode) -> str:
    """Return the source text of `node` on one line."""
    kind = type(node)
    if kind is cst.Name or kind is cst.Attribute:
        plain = _plain(node)
        if plain:
            return plain
    return " ".join(_EMPTY.code_for_node(node).split())


def _plain(node: cst.CSTNode) -> str:
    """Return the text of a dotted name without spaces and parentheses; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        before, after = node.dot.whitespace_before, node.dot.whitespace_after
        if not (before.empty and after.empty) or node.lpar or node.attr.lpar:
            return ""
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name) or node.lpar:
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


def is_docstring(statement: cst.CSTNode) -> bool:
    """Whether `statement` is a string and nothing else."""
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def insert_first(function: cst.FunctionDef, statement: cst.BaseStatement) -> cst.FunctionDef:
    """Return `function` with `statement` before the others of its body, after the docstring.

    After `global` and `nonlocal`, too, which may not follow a use of their names.
    """
    body = function.body
    if not isinstance(body, cst.IndentedBlock):  # def f(): pass
        line = cst.SimpleStatementLine(
            body=list(cst.ensure_type(body, cst.SimpleStatementSuite).body)
        )
        return function.with_changes(body=cst.IndentedBlock(body=[statement, line]))
    at = 1 if is_docstring(body.body[0]) else 0
    while at < len(body.body) and _declares(body.body[at]):
        at += 1
    return function.with_changes(
        body=body.with_changes(body=[*body.body[:at], statement, *body.body[at:]])
    )


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
