"""Trees of source with holes: finding, filling and measuring them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from converters.graph.expression import Hole
from converters.graph.ir import Ref
from converters.graph.writing.original.comments import commented, of


def holes(value: ast.AST) -> Iterator[Hole]:
    """The holes in a tree, from left to right."""
    if isinstance(value, Hole):
        yield value
        return
    for child in ast.iter_child_nodes(value):
        yield from holes(child)


def refs(value: ast.AST) -> Iterator[int]:
    """The tensors that a tree names, from left to right."""
    for node in holes(value):
        if isinstance(node.value, Ref):
            yield node.value.id


def fill(value: Any, how: Callable[[Hole], ast.expr]) -> Any:
    """A tree with each of its holes as `how` says; the tree itself stays."""
    return _Filler(how).visit(_copy_holes(value))


def filled(value: ast.expr, held: Mapping[int, ast.expr]) -> ast.expr:
    """A tree with the holes of these tensors filled."""

    def one(hole: Hole) -> ast.expr:
        if isinstance(hole.value, Ref) and hole.value.id in held:
            return held[hole.value.id]
        return hole

    return fill(value, one)


class _Filler(ast.NodeTransformer):
    def __init__(self, fill: Callable[[Hole], ast.expr]) -> None:
        self.fill = fill

    def visit_Hole(self, node: Hole) -> ast.expr:
        return self.fill(node)


def _copy_holes(tree: Any) -> Any:
    if isinstance(tree, Hole):
        return Hole(tree.value)
    if isinstance(tree, ast.AST):
        copied = type(tree).__new__(type(tree))
        # Given all at once, as in `expression`: Python 3.13 warns of a node without its fields.
        copies = {name: _copy_holes(getattr(tree, name, None)) for name in tree._fields}
        ast.AST.__init__(copied, **copies)
        return commented(copied, of(tree))
    return [_copy_holes(element) for element in tree] if isinstance(tree, list) else tree


def length(value: ast.expr) -> int:
    """Length of an expression, with a name in each hole."""

    class Shown(ast.NodeTransformer):
        def visit_Hole(self, node: Hole) -> ast.expr:
            return ast.Name("xxxxxxxx", ast.Load())

    return len(ast.unparse(ast.fix_missing_locations(Shown().visit(_copy_holes(value)))))
