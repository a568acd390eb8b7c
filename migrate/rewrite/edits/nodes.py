"""New nodes from old ones: a call with other arguments, a function with one more statement, parentheses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, cast

import libcst as cst

from migrate.syntax.tree import code, is_docstring
from migrate.syntax.walk import code_nodes

Node = TypeVar("Node", bound=cst.CSTNode)


def argument(arg: cst.Arg) -> str:
    """Return the code of an argument, without the comma after it."""
    return code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip()


def with_args(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
    """Return `call` with the arguments `args`, in the layout of the author.

    A trailing comma stays, with one argument on each line. A closing bracket on its own line stays. The
    line break after a removed argument at the end of its line stays too.
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
    """Whether the line ends after `comma`."""
    after = comma.whitespace_after if isinstance(comma, cst.Comma) else None
    return isinstance(after, cst.ParenthesizedWhitespace)


def _comma_of_one(call: cst.Call) -> cst.Comma:
    """Return the comma after the only argument of `call`, for a second argument.

    It has a line break if the argument and the closing bracket are on lines of their own.
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
    """Return `comma` with the line break after it, without the comment there."""
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


def spread(values: cst.BaseExpression) -> list[cst.Arg]:
    """Return the arguments that a sequence holds: those of `args=(x, *rest)` in a call that gets them."""
    if not isinstance(values, cst.Tuple | cst.List):
        return [cst.Arg(values, star="*")]
    return [
        cst.Arg(element.value, star="*" if isinstance(element, cst.StarredElement) else "")
        for element in values.elements
    ]


def without(value: cst.BaseExpression, index: int) -> cst.BaseExpression:
    """Return the tuple, list or dictionary `value` without one element. A tuple of one keeps its comma."""
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
    """Return `function` with `statement` as the first of its body, after the docstring.

    It is also put after `global` and `nonlocal`, which may not follow a use of their names.
    """
    return function.with_changes(body=first_in(function.body, statement))


def first_in(body: cst.BaseSuite, statement: cst.BaseStatement) -> cst.IndentedBlock:
    """Return the body of a statement with `statement` as the first, as `insert_first` does."""
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


def below_line(
    updated: cst.SimpleStatementLine | cst.BaseCompoundStatement, source: str
) -> tuple[cst.BaseStatement, cst.BaseStatement]:
    """Return a line of `source`, and the statement `updated` below it.

    Blank lines stay above both; a comment stays with the statement that it speaks of.
    """
    blank, comments = split_blank(updated.leading_lines)
    line = cst.ensure_type(cst.parse_statement(source), cst.SimpleStatementLine)
    return line.with_changes(leading_lines=blank), updated.with_changes(leading_lines=comments)


# Precedence of an expression, by its type or its operator. All others are primaries.
_BARE = 0  # few positions allow it without parentheses
_NAMED, _CHOICE, _OR, _AND, _NOT, _COMPARISON = range(1, 7)
_BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT, _SUM, _PRODUCT, _SIGN, _POWER, _AWAIT, _PRIMARY = range(7, 17)
_LEVELS: dict[type, int] = {
    cst.Yield: _BARE,
    cst.Tuple: _BARE,
    cst.GeneratorExp: _BARE,
    cst.NamedExpr: _NAMED,
    cst.IfExp: _CHOICE,
    cst.Lambda: _CHOICE,
    cst.Comparison: _COMPARISON,
    cst.Await: _AWAIT,
}
_OPERATORS: dict[type, int] = {
    cst.Or: _OR,
    cst.And: _AND,
    cst.Not: _NOT,
    cst.BitOr: _BIT_OR,
    cst.BitXor: _BIT_XOR,
    cst.BitAnd: _BIT_AND,
    cst.LeftShift: _SHIFT,
    cst.RightShift: _SHIFT,
    cst.Add: _SUM,
    cst.Subtract: _SUM,
    cst.Plus: _SIGN,
    cst.Minus: _SIGN,
    cst.BitInvert: _SIGN,
    cst.Power: _POWER,
}
# Fields of a node, with the lowest precedence of an expression there. Fields of statements and brackets take
# any expression and are in none of the tables.
_FIELDS: dict[type, tuple[tuple[str, int], ...]] = {
    cst.Attribute: (("value", _PRIMARY),),
    cst.Call: (("func", _PRIMARY),),
    cst.Subscript: (("value", _PRIMARY),),
    cst.Await: (("expression", _PRIMARY),),
    cst.Comparison: (("left", _BIT_OR),),
    cst.ComparisonTarget: (("comparator", _BIT_OR),),
    cst.IfExp: (("body", _OR), ("test", _OR), ("orelse", _CHOICE)),
    cst.Lambda: (("body", _CHOICE),),
    cst.NamedExpr: (("value", _CHOICE),),
    cst.StarredElement: (("value", _BIT_OR),),
    cst.StarredDictElement: (("value", _BIT_OR),),
    cst.DictElement: (("key", _CHOICE), ("value", _CHOICE)),
    cst.Element: (("value", _NAMED),),
    cst.CompFor: (("iter", _OR),),
    cst.CompIf: (("test", _OR),),
    cst.DictComp: (("key", _CHOICE), ("value", _CHOICE)),
    cst.ListComp: (("elt", _NAMED),),
    cst.SetComp: (("elt", _NAMED),),
    cst.GeneratorExp: (("elt", _NAMED),),
    cst.Slice: (("lower", _CHOICE), ("upper", _CHOICE), ("step", _CHOICE)),
    cst.If: (("test", _NAMED),),
    cst.While: (("test", _NAMED),),
    cst.Assert: (("test", _CHOICE), ("msg", _CHOICE)),
    cst.Raise: (("exc", _CHOICE),),
    cst.WithItem: (("item", _CHOICE),),
    cst.Param: (("default", _CHOICE),),
}


def with_parentheses(root: Node, *, below: bool = True) -> Node:
    """Return `root` with parentheses around each expression that needs them at its position.

    An edit may build `… if rank == 0 else None` or `….cpu()` around a user's expression, or replace an
    expression by another one. This function adds the parentheses that precedence requires.

    Args:
        root: the result of an edit.
        below: whether all nodes below are checked, or only the expressions directly in `root`.
    """
    if not below:
        return _mended(root)
    places = {
        id(node)
        for node in code_nodes(root)
        if any(True for _ in _loose(node))
        or (isinstance(node, cst.Call) and len(node.args) > 1 and any(map(_is_bare, node.args)))
    }
    return cast("Node", root.visit(_Parentheses(places))) if places else root


class _Parentheses(cst.CSTTransformer):
    """Adds missing parentheses in the nodes `places` (by id)."""

    def __init__(self, places: set[int]) -> None:
        super().__init__()
        self._places = places

    def on_leave(self, original_node, updated_node):  # type: ignore[no-untyped-def]
        """Return the node with parentheses around the expressions in it that need them."""
        return _mended(updated_node) if id(original_node) in self._places else updated_node


def _mended(node: Node) -> Node:
    changes: dict[str, object] = {field: in_parentheses(value) for field, value in _loose(node)}
    if isinstance(node, cst.Call) and len(node.args) > 1 and any(map(_is_bare, node.args)):
        changes["args"] = [
            arg.with_changes(value=in_parentheses(arg.value)) if _is_bare(arg) else arg
            for arg in node.args
        ]
    return node.with_changes(**changes) if changes else node


def in_parentheses(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return `value` with one more pair of parentheses around it."""
    return value.with_changes(
        lpar=[cst.LeftParen(), *value.lpar], rpar=[*value.rpar, cst.RightParen()]
    )


def operand(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return `value` in a form that an attribute can follow: `x`, `f(x)`, `(x + y)`."""
    if value.lpar or isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
        return value
    return in_parentheses(value)


def _is_bare(arg: cst.Arg) -> bool:
    """Whether `arg` is a generator without parentheses. Only the single argument of a call may be one."""
    return isinstance(arg.value, cst.GeneratorExp) and not arg.value.lpar


def _loose(node: cst.CSTNode) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the expressions directly in `node` that need parentheses, each with its field."""
    for field, level in _asked(node):
        value = getattr(node, field, None)
        if isinstance(value, cst.BaseExpression) and not value.lpar and _level(value) < level:
            yield field, value
    if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Integer):
        if not node.value.lpar:  # the dot would be its decimal point
            yield "value", node.value
    elif isinstance(node, cst.FormattedStringExpression):
        inner = node.expression  # the colon would begin the format
        if isinstance(inner, cst.Lambda | cst.NamedExpr) and not inner.lpar:
            yield "expression", inner


def _asked(node: cst.CSTNode) -> Iterable[tuple[str, int]]:
    """Return the fields of `node` that hold an expression, each with the lowest precedence allowed."""
    if isinstance(node, cst.BinaryOperation):
        level = _OPERATORS.get(type(node.operator), _PRODUCT)
        if level == _POWER:
            return ("left", _AWAIT), ("right", _SIGN)
        return ("left", level), ("right", level + 1)
    if isinstance(node, cst.BooleanOperation):  # `a and (b and c)` is `a and b and c`
        level = _OPERATORS[type(node.operator)]
        return ("left", level), ("right", level)
    if isinstance(node, cst.UnaryOperation):
        return (("expression", _OPERATORS[type(node.operator)]),)
    if isinstance(node, cst.Arg):
        if isinstance(node.value, cst.GeneratorExp) and node.keyword is None and not node.star:
            return ()  # the only argument needs none; see `_mended` for further ones
        return (("value", _CHOICE if node.keyword is not None or node.star else _NAMED),)
    return _FIELDS.get(type(node), ())


def _level(value: cst.BaseExpression) -> int:
    if isinstance(value, cst.BinaryOperation):
        return _OPERATORS.get(type(value.operator), _PRODUCT)
    if isinstance(value, cst.BooleanOperation | cst.UnaryOperation):
        return _OPERATORS[type(value.operator)]
    return _LEVELS.get(type(value), _PRIMARY)
