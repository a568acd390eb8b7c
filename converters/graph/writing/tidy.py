"""Small turns of expression: what a person would not write as it comes out of the operators."""

from __future__ import annotations

import ast
from typing import Any

from converters.graph.writing.statements import turned


def tidied(tree: Any) -> Any:
    """A statement or expression, with sides and turns written as one writes them."""
    return _Tidy().visit(tree)


class _Tidy(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.args = _leading(node.args)
        inner = _swapped(node)
        return inner if inner is not None else node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.elts = _leading(node.elts)
        return node


def _swapped(node: ast.Call) -> ast.expr | None:
    """`x` for `x.swapaxes(1, 2).swapaxes(1, 2)`."""
    turn = turned(node)
    if turn is None:
        return None
    inner, axes = turn
    again = turned(inner) if isinstance(inner, ast.Call) else None
    return again[0] if again is not None and again[1] == axes else None


def _leading(elements: list[ast.expr]) -> list[ast.expr]:
    """`*x.shape[:2], …` for `x.shape[0], x.shape[1], …`."""
    owner, count = "", 0
    for index, one in enumerate(elements):
        found = _side(one)
        if found is None or found[1] != index or (owner and found[0] != owner):
            break
        owner, count = found[0], count + 1
    if count < 2:
        return elements
    sides = ast.parse(f"{owner}.shape[:{count}]", mode="eval").body
    return [ast.Starred(sides, ast.Load()), *elements[count:]]


def _side(node: ast.expr) -> tuple[str, int] | None:
    """`x.shape[1]` → ("x", 1)."""
    match node:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id=name), attr="shape"),
            slice=ast.Constant(value=int(axis)),
        ):
            return name, axis
    return None
