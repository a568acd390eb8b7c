"""Values that a turn of a loop takes over from the previous turn."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.reading.steps.loops import Loop
from migrate.syntax.tree import nodes_of, targets
from migrate.syntax.walk import children


def carried(loop: Loop) -> set[str]:
    """Return the names that a turn of `loop` reads with values from the previous turn."""
    bound: set[str] = set()
    early: set[str] = set()
    for statement in _statements(loop.body):
        kept = [name for target in _assigned(statement) for name in nodes_of(target, cst.Name)]
        stores = {id(name) for name in kept}
        used = {n.value for n in nodes_of(statement, cst.Name) if id(n) not in stores}
        numbers = cst.Integer | cst.Float
        if isinstance(statement, cst.AugAssign) and not isinstance(statement.value, numbers):
            used |= {name.value for name in kept}
        early |= used - bound
        bound |= {name.value for name in kept}
    return early & bound


def _statements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the parts of a block that bind names, in their order."""
    for child in children(node):
        if isinstance(child, cst.FunctionDef | cst.ClassDef):
            continue
        if isinstance(child, cst.BaseSmallStatement):
            yield child
        else:
            yield from _statements(child)


def _assigned(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.Assign):
        yield from targets(node)
    elif isinstance(node, cst.AugAssign | cst.AnnAssign):
        yield node.target
