"""Small turns of expression: what a person would not write as it comes out of the operators."""

from __future__ import annotations

import ast
from typing import Any

import torch

from converters.graph.expression import code
from converters.graph.writing.original.names import integer
from converters.graph.writing.statements import turned

_LARGEST = torch.finfo(torch.float32).max
_NEW, _AXIS, _REST = "None", ":", "..."


def tidied(tree: Any) -> Any:
    """A statement or expression, with sides and turns written as one writes them."""
    return _Tidy().visit(tree)


class _Tidy(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        node.args = _leading(node.args)
        inner = _swapped(node) or _moved_back(node)
        return inner if inner is not None else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.ctx, ast.Load):
            index, array = _axes(node), node.value
            while index is not None and isinstance(array, ast.Subscript):
                joined = _joined(_axes(array), index)
                if joined is None:
                    break
                index, array = joined, array.value
            if index is not None:
                return code(f"{{x}}[{', '.join(index)}]", x=self.visit(array))
        self.generic_visit(node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        limit = isinstance(node.op, ast.USub) and _is_limit(node.operand)
        if limit:
            return code("jnp.finfo(jnp.float32).min")
        self.generic_visit(node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return code("jnp.finfo(jnp.float32).max") if _is_limit(node) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Attribute(attr="T", value=ast.Attribute(attr="T", value=inner)):
                return inner
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.elts = _leading(node.elts)
        return node


def _is_limit(node: ast.expr) -> bool:
    """Whether a number is the largest of float32: 3.4028234663852886e+38."""
    return isinstance(node, ast.Constant) and node.value == _LARGEST


def _swapped(node: ast.Call) -> ast.expr | None:
    """`x` for `x.swapaxes(1, 2).swapaxes(1, 2)`."""
    turn = turned(node)
    if turn is None:
        return None
    inner, axes = turn
    again = turned(inner) if isinstance(inner, ast.Call) else None
    return again[0] if again is not None and again[1] == axes else None


def _axes(node: ast.Subscript) -> list[str] | None:
    """The index `[:, None, :]` of the first axes, or `[..., None]` of the last ones, as texts; None for an
    index that does more than add axes.
    """
    indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    texts = [ast.unparse(index) for index in indices]
    if _NEW not in texts:
        return None
    if texts[0] == _REST:
        return texts if set(texts[1:]) == {_NEW} else None
    while texts[-1] == _AXIS:
        texts.pop()
    return texts if set(texts) <= {_NEW, _AXIS} else None


def _joined(inner: list[str] | None, outer: list[str]) -> list[str] | None:
    """The index that does what two do, one after the other; None if there is none."""
    if inner is None or (inner[0] == _REST) != (outer[0] == _REST):
        return None
    if inner[0] == _REST:
        return [*inner, *outer[1:]]
    axes = iter(inner)
    return [*(next(axes, _AXIS) if kind == _AXIS else kind for kind in outer), *axes]


def _moved_back(node: ast.Call) -> ast.expr | None:
    """`x` for `jnp.moveaxis(jnp.moveaxis(x, 1, -1), -1, 1)`."""
    outer = _axis_moved(node)
    inner = _axis_moved(outer[0]) if outer is not None else None
    if outer is None or inner is None or outer[1:] != (inner[2], inner[1]):
        return None
    return inner[0]


def _axis_moved(node: ast.expr) -> tuple[ast.expr, Any, Any] | None:
    """`jnp.moveaxis(x, 1, -1)` → (x, 1, -1)."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="jnp"), attr="moveaxis"), args=[inner, start, end]
        ):
            axes = integer(start), integer(end)
            return None if None in axes else (inner, *axes)
    return None


def _leading(elements: list[ast.expr]) -> list[ast.expr]:
    """`*x.shape[:2], …` for `x.shape[0], x.shape[1], …`."""
    owner, count = "", 0
    for index, element in enumerate(elements):
        side = _side(element)
        if side is None or side[1] != index or (owner and side[0] != owner):
            break
        owner, count = side[0], count + 1
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
