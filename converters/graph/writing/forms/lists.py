"""Lists of modules in a constructor: `_list([…], count)` until it is known which are comprehensions."""

from __future__ import annotations

import ast
from collections.abc import Sequence, Set
from typing import Any

from converters.graph.expression import INDEX, Hole, call, code
from converters.graph.writing.holes import fill

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


def together(statement: ast.stmt, over: Set[str], path: str = "") -> ast.stmt:
    """A statement, its list of equal modules as one of them and their number, so that any number is one form.

    Modules are equal too if their numbers are the same expression of their place in the list.

    Args:
        statement: of a constructor.
        over: lists that a loop goes over; of others the number stays, as another would not be called.
        path: path of the module whose constructor it is.
    """
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement
    attribute = target.attr if isinstance(target, ast.Attribute) else ""
    holder = f"{path}.{attribute}" if path else attribute
    reduced: ast.stmt = _EqualModules(attribute in over, holder).visit(statement)
    return reduced


def called_whole(setup: Sequence[ast.stmt], trees: Sequence[ast.AST]) -> set[str]:
    """The Sequentials of a constructor that only calls of the whole read: any number of modules will do.

    Args:
        setup: the constructor.
        trees: the methods.
    """
    sequences = {
        statement.targets[0].attr
        for statement in setup
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Attribute)
        and isinstance(statement.value, ast.Call)
        and any(map(_is_list, statement.value.args))
    }
    nodes = [node for tree in trees for node in ast.walk(tree)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    apart = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and id(node) not in called
    }
    return sequences - apart


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
    return made([part], count)


def made(parts: list[ast.expr], count: Any) -> ast.expr:
    """A list of modules of a constructor, with their number."""
    return call(_NAME, ast.List(parts, ast.Load()), count)


def _is_list(value: ast.AST) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == _NAME
    )


class _EqualModules(ast.NodeTransformer):
    def __init__(self, looped: bool, holder: str) -> None:
        self.looped, self.holder = looped, holder

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not _is_list(node):
            return node
        parts, count = node.args
        assert isinstance(parts, ast.List)
        alike = len({_form(part, self.holder) for part in parts.elts}) == 1
        if alike and (self.looped or len(parts.elts) > 1):
            number = count if self.looped else ast.Constant(len(parts.elts))
            first = fill(parts.elts[0], self._in_turn)
            return ast.Call(node.func, [ast.List([first], ast.Load()), number], [])
        return parts

    def _in_turn(self, hole: Hole) -> ast.expr:
        """A number of a module with its place in the list as the loop's variable."""
        value = hole.value
        if getattr(value, "holder", "") != self.holder or not self.holder:
            return hole
        return Hole(type(value)(value, value.text, value.parts, value.local))


def _form(node: Any, holder: str) -> str:
    """All of a tree, the numbers in its holes too; of those by their place in the list, the expression."""
    if isinstance(node, Hole):
        value = node.value
        listed = holder and getattr(value, "holder", "") == holder
        return f"?{'' if listed else repr(value)} {getattr(value, 'text', '')}"
    if isinstance(node, ast.AST):
        fields = (_form(getattr(node, name, None), holder) for name in node._fields)
        return f"{type(node).__name__}({','.join(fields)})"
    if isinstance(node, list):
        return f"[{','.join(_form(part, holder) for part in node)}]"
    return repr(node)


class _Written(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not _is_list(node):
            return node
        parts, count = node.args
        assert isinstance(parts, ast.List)
        if isinstance(count, ast.Constant) and count.value == 1:
            return parts
        name = INDEX if is_numbered(parts.elts[0]) else "_"
        return code(f"[{{one}} for {name} in range({{count}})]", one=parts.elts[0], count=count)


def is_numbered(part: ast.expr) -> bool:
    """Whether a module of a list is made by its place in the list."""
    if isinstance(part, ast.ListComp):
        return False
    if isinstance(part, ast.Name):
        return part.id == INDEX
    return any(is_numbered(child) for child in ast.iter_child_nodes(part))  # type: ignore[arg-type]
