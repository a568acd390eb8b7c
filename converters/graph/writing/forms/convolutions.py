"""Convolutions that differ in numbers only: written with all of them while classes are compared."""

from __future__ import annotations

import ast

from converters.graph.expression import as_code
from converters.graph.writing.holes import fill

_ORDER = ("kernel_size", "strides", "padding", "kernel_dilation")
# What is 1 along each axis where nothing is said.
_ONES = ("strides", "kernel_dilation")


def spelled_out(statement: ast.stmt) -> ast.stmt:
    """A constructor's statement, its convolutions with strides, dilation, padding and bias spelled out."""
    made: ast.stmt = _Out().visit(fill(statement, lambda hole: hole))
    return made


def as_usual(statement: ast.stmt) -> ast.stmt:
    """The statement without what is usual."""
    made: ast.stmt = _Usual().visit(statement)
    return made


def _is_convolution(node: ast.Call) -> bool:
    return ast.unparse(node.func) == "nn.Conv"


class _Out(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        if isinstance(node.func, ast.Attribute) and _is_convolution(node):
            given: dict[str | None, ast.expr] = {one.arg: one.value for one in node.keywords}
            kernel = given.get("kernel_size")
            axes = len(kernel.elts) if isinstance(kernel, ast.Tuple) else 0
            if axes:
                for name in _ONES:
                    given.setdefault(name, as_code((1,) * axes))
                padding = given.get("padding")
                if isinstance(padding, ast.Constant) and padding.value == "VALID":
                    given["padding"] = as_code(((0, 0),) * axes)
                given.setdefault("use_bias", as_code(True))
                first: dict[str | None, ast.expr] = {
                    name: given.pop(name) for name in _ORDER if name in given
                }
                node.keywords = [ast.keyword(k, v) for k, v in {**first, **given}.items()]
        self.generic_visit(node)
        return node


class _Usual(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and _is_convolution(node):
            node.keywords = [
                ast.keyword(one.arg, _valid(one)) for one in node.keywords if not _needless(one)
            ]
        return node


def _needless(one: ast.keyword) -> bool:
    if one.arg in _ONES and isinstance(one.value, ast.Tuple):
        return all(isinstance(side, ast.Constant) and side.value == 1 for side in one.value.elts)
    return one.arg == "use_bias" and isinstance(one.value, ast.Constant) and one.value.value is True


def _valid(one: ast.keyword) -> ast.expr:
    numbers = [node for node in ast.walk(one.value) if isinstance(node, ast.Constant)]
    plain = all(
        isinstance(node, ast.Tuple | ast.Constant | ast.Load) for node in ast.walk(one.value)
    )
    if one.arg == "padding" and plain and numbers and all(node.value == 0 for node in numbers):
        return ast.Constant("VALID")
    return one.value
