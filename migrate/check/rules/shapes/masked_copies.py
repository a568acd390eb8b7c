"""Assignments at a mask of values at the same mask: `a[mask] = b[mask]`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import words
from migrate.reading.facts import Facts
from migrate.syntax.tree import code

# Methods that compute each element on its own, as torch.where may do for all elements.
OF_EACH = words("bfloat16 clone detach double float half to type type_as")

Assigning = cst.Assign | cst.AugAssign


def assignment_to(node: cst.Subscript, facts: Facts) -> Assigning | None:
    """Return the statement `node = value` or `node += value`."""
    above = facts.context.parent(node)
    if isinstance(above, cst.AssignTarget):
        above = facts.context.parent(above)
    elif not isinstance(above, cst.AugAssign) or above.target is not node:
        return None
    return above if isinstance(above, cst.Assign | cst.AugAssign) else None


def is_copied_to(node: cst.Subscript, facts: Facts) -> bool:
    """Whether the value that is assigned to `node` is selected by the same index."""
    statement = assignment_to(node, facts)
    return statement is not None and any(
        _index(part) == _index(node) for part in _selected(statement.value)
    )


def copied_to(node: cst.Subscript, facts: Facts) -> cst.Subscript | None:
    """Return `a[mask]` for the node `b[mask]` of `a[mask] = b[mask]`."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.Assign | cst.AugAssign):
            if not any(part is node for part in _selected(above.value)):
                return None
            targets = (
                [target.target for target in above.targets]
                if isinstance(above, cst.Assign)
                else [above.target]
            )
            same = (
                t for t in targets if isinstance(t, cst.Subscript) and _index(t) == _index(node)
            )
            return next(same, None)
        if isinstance(above, cst.BaseStatement | cst.BaseSmallStatement | cst.Lambda):
            return None
    return None


def _selected(value: cst.BaseExpression) -> Iterator[cst.Subscript]:
    """Yield the subscripts whose elements `value` computes with, each on its own."""
    match value:
        case cst.Subscript():
            yield value
        case cst.BinaryOperation(left=left, right=right):
            yield from _selected(left)
            yield from _selected(right)
        case cst.UnaryOperation(expression=inner):
            yield from _selected(inner)
        case cst.Call(func=cst.Attribute(value=of, attr=cst.Name(name))) if name in OF_EACH:
            yield from _selected(of)


def _index(node: cst.Subscript) -> tuple[str, ...]:
    return tuple(code(element.slice) for element in node.slice)
