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
    spelled: ast.stmt = _Out().visit(fill(statement, lambda hole: hole))
    return spelled


def as_usual(statement: ast.stmt) -> ast.stmt:
    """The statement without what is usual."""
    shortened: ast.stmt = _Usual().visit(statement)
    return shortened


def _is_convolution(node: ast.Call) -> bool:
    return ast.unparse(node.func) in ("nn.Conv", "nnx.Conv")


class _Out(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        if isinstance(node.func, ast.Attribute) and _is_convolution(node):
            options: dict[str | None, ast.expr] = {
                keyword.arg: keyword.value for keyword in node.keywords
            }
            kernel = options.get("kernel_size")
            axes = len(kernel.elts) if isinstance(kernel, ast.Tuple) else 0
            if axes:
                for name in _ONES:
                    options.setdefault(name, as_code((1,) * axes))
                padding = options.get("padding")
                if isinstance(padding, ast.Constant) and padding.value == "VALID":
                    options["padding"] = as_code(((0, 0),) * axes)
                options.setdefault("use_bias", as_code(True))
                first: dict[str | None, ast.expr] = {
                    name: options.pop(name) for name in _ORDER if name in options
                }
                node.keywords = [ast.keyword(k, v) for k, v in {**first, **options}.items()]
        self.generic_visit(node)
        return node


class _Usual(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and _is_convolution(node):
            node.keywords = [
                ast.keyword(keyword.arg, _valid(keyword))
                for keyword in node.keywords
                if not _needless(keyword)
            ]
        return node


def _needless(keyword: ast.keyword) -> bool:
    if keyword.arg in _ONES and isinstance(keyword.value, ast.Tuple):
        return all(
            isinstance(side, ast.Constant) and side.value == 1 for side in keyword.value.elts
        )
    return (
        keyword.arg == "use_bias"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
    )


def _valid(keyword: ast.keyword) -> ast.expr:
    numbers = [node for node in ast.walk(keyword.value) if isinstance(node, ast.Constant)]
    plain = all(
        isinstance(node, ast.Tuple | ast.Constant | ast.Load) for node in ast.walk(keyword.value)
    )
    if keyword.arg == "padding" and plain and numbers and all(node.value == 0 for node in numbers):
        return ast.Constant("VALID")
    return keyword.value
