"""Lists of modules in a constructor: `_list([…], count)` until it is known which are comprehensions."""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set
from typing import Any

from converters.graph.expression import Hole, call, code

_NAME = "_list"


def lengths(setup: Sequence[ast.stmt]) -> dict[str, int]:
    """Attribute → how many modules its list has."""
    return {
        statement.targets[0].attr: len(statement.value.args[0].elts)
        for statement in setup
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Attribute)
        and _is_list(statement.value)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.args[0], ast.List)
    }


def together(statement: ast.stmt, over: Set[str]) -> ast.stmt:
    """A statement, its list of equal modules as one of them and their number, so that any number is one form.

    Args:
        statement: of a constructor.
        over: lists that a loop goes over; of others the number stays, as another would not be called.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement
    looped = isinstance(target, ast.Attribute) and target.attr in over
    reduced: ast.stmt = _EqualModules(looped).visit(statement)
    return reduced


def written(statement: ast.stmt) -> ast.stmt:
    """A statement, its lists as they stand in source."""
    spelled: ast.stmt = _Written().visit(statement)
    return spelled


def counted(value: ast.expr) -> tuple[list[ast.expr], ast.expr] | None:
    """A list of equal modules: one of them, and their number; None for other values."""
    if isinstance(value, ast.Call) and _is_list(value) and isinstance(value.args[0], ast.List):
        return value.args[0].elts, value.args[1]
    return None


def equal_modules(part: ast.expr, count: int) -> ast.expr:
    """A list of equal modules, as `counted` reads it."""
    return call(_NAME, ast.List([part], ast.Load()), count)


def _is_list(value: ast.AST) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == _NAME
    )


class _EqualModules(ast.NodeTransformer):
    def __init__(self, looped: bool) -> None:
        self.looped = looped

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not _is_list(node):
            return node
        parts, count = node.args
        assert isinstance(parts, ast.List)
        alike = len({_form(part) for part in parts.elts}) == 1
        if alike and (self.looped or len(parts.elts) > 1):
            number = count if self.looped else ast.Constant(len(parts.elts))
            return ast.Call(node.func, [ast.List(parts.elts[:1], ast.Load()), number], [])
        return parts


def _form(node: Any) -> str:
    """All of a tree, the numbers in its holes too."""
    if isinstance(node, Hole):
        value = node.value
        return f"?{value!r} {getattr(value, 'text', '')}"
    if isinstance(node, ast.AST):
        return f"{type(node).__name__}({','.join(_form(getattr(node, f, None)) for f in node._fields)})"
    return f"[{','.join(map(_form, node))}]" if isinstance(node, list) else repr(node)


class _Written(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not _is_list(node):
            return node
        parts, count = node.args
        assert isinstance(parts, ast.List)
        if isinstance(count, ast.Constant) and count.value == 1:
            return parts
        return code("[{one} for _ in range({count})]", one=parts.elts[0], count=count)
