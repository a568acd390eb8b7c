"""Sizes that the original's constructor gives a name: `self.all_head_size = …`, which several layers read."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from converters.graph.writing.holes import fill

# How long an expression is that a name is easier to read than.
_LONG = 40


def named(
    written: Sequence[ast.expr], called: Sequence[str]
) -> tuple[list[ast.stmt], list[ast.expr]]:
    """Statements for `setup`, and the expressions with the names that these give.

    Args:
        written: what gives each number of a class.
        called: what the original's module calls it; "" if it does not, or may not.
    """
    uses: dict[str, dict[str, list[int]]] = {}
    for index, (expression, name) in enumerate(zip(written, called, strict=True)):
        if name and isinstance(expression, ast.BinOp | ast.Call):
            uses.setdefault(name, {}).setdefault(ast.unparse(expression), []).append(index)
    # Of a name that stands for two things nothing is said.
    single = {
        text: (name, places)
        for name, texts in uses.items()
        if len(texts) == 1
        for text, places in texts.items()
    }
    parts = Counter(part for expression in written for part in _parts(expression))
    often = {text for text in single if parts[text] > 1 and len(text) > _LONG}
    chosen = often | {text for text in single if any(text in other for other in often - {text})}
    statements: list[ast.stmt] = []
    names: dict[str, str] = {}
    for text in sorted(chosen, key=len):
        name, places = single[text]
        value = _named(written[places[0]], names)
        statements.append(ast.Assign([_of_self(name, ast.Store())], value))
        names[text] = name
    return statements, [_named(expression, names) for expression in written]


def _parts(value: ast.expr) -> list[str]:
    """The expressions in one that may have a name."""
    nodes = (node for node in ast.walk(value) if isinstance(node, ast.BinOp | ast.Call))
    return [ast.unparse(node) for node in nodes]


class _Named(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp | ast.Call) and (name := self.names.get(ast.unparse(node))):
            return _of_self(name, ast.Load())
        return self.generic_visit(node)


def _named(value: ast.expr, names: Mapping[str, str]) -> ast.expr:
    """A copy, as one expression may stand in several places."""
    renamed: ast.expr = _Named(names).visit(fill(value, lambda hole: hole))
    return renamed


def _of_self(name: str, context: ast.expr_context) -> ast.expr:
    return ast.Attribute(ast.Name("self", ast.Load()), name, context)
