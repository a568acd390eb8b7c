"""Shapes that the original gives a name: `shape = (*x.shape[:2], -1, head_dim)` before `.view(shape)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set

from converters.graph.expression import Hole
from converters.graph.ir import Frame
from converters.graph.writing.holes import fill
from converters.graph.writing.original import names

# How long a line may be with the shape in it, and how few sides are no shape to speak of.
_LONG = 88
_FEW = 2


def with_shapes(
    body: Sequence[ast.stmt], frames: Sequence[Sequence[Frame]], taken: Set[str]
) -> list[ast.stmt]:
    """Statements with the shapes under their names, where that says them once or keeps a line short.

    Args:
        body: the statements.
        frames: of each, the lines of the original.
        taken: names that stand for something else.
    """
    shapes: dict[str, list[tuple[int, ast.Call, str]]] = {}
    for index, (statement, lines) in enumerate(zip(body, frames, strict=True)):
        name = names.shape_given(lines[-1]) if lines else ""
        calls = [node for node in ast.walk(statement) if _reshapes(node)] if name else []
        if len(calls) == 1:
            call = calls[0]
            assert isinstance(call, ast.Call)
            if len(call.args) > _FEW:
                shapes.setdefault(_text(ast.Tuple(call.args, ast.Load())), []).append(
                    (index, call, name)
                )
    before: dict[int, ast.stmt] = {}
    used = set(taken) | {node.id for node in _names(body)}
    for group in shapes.values():
        group = _standing(group, body)
        first, call, name = group[0]
        # The turns of a loop come from one line: they stay alike, so that they can be rolled again.
        same_line = len({frames[index][-1] for index, *_ in group}) < len(group)
        long = len(group) > 1 or len(_text(body[first])) > _LONG
        if name in used or same_line or not long:
            continue
        used.add(name)
        shape = ast.Tuple(list(call.args), ast.Load())
        before[first] = ast.Assign([ast.Name(name, ast.Store())], shape)
        for _, other, _ in group:
            other.args = [ast.Name(name, ast.Load())]
    return [new for index, statement in enumerate(body) for new in (*_at(before, index), statement)]


def _at(before: dict[int, ast.stmt], index: int) -> tuple[ast.stmt, ...]:
    return (before[index],) if index in before else ()


def _standing(
    group: list[tuple[int, ast.Call, str]], body: Sequence[ast.stmt]
) -> list[tuple[int, ast.Call, str]]:
    """The statements before a name in the shape is reassigned."""
    read = {node.id for side in group[0][1].args for node in _names([side])}
    for at in range(group[0][0], group[-1][0]):
        if read & {node.id for node in _names([body[at]]) if isinstance(node.ctx, ast.Store)}:
            return [entry for entry in group if entry[0] <= at]
    return group


def _reshapes(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "reshape"
        and not node.keywords
    )


def _names(trees: Sequence[ast.AST]) -> Iterator[ast.Name]:
    return (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))


def _text(tree: ast.AST) -> str:
    """Source of a tree, with the origin of each setting of the model."""

    def one(hole: Hole) -> ast.expr:
        said = getattr(hole.value, "text", "") or getattr(hole.value, "local", "")
        return ast.Name(f"self.config.{said}" if said else repr(hole.value), ast.Load())

    return ast.unparse(ast.fix_missing_locations(fill(tree, one)))
