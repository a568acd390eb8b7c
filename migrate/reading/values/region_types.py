"""Types that an autocast region may get, followed to the code of the script that names them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import code

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

HALF = frozenset({"torch.float16", "torch.half"})
WIDE = frozenset({"torch.float32", "torch.float"})
TYPES = HALF | WIDE | {"torch.bfloat16", "torch.float64", "torch.double"}

# Maximum number of names, attributes, dictionaries and functions between a type and its region.
DEEPEST = 6


def types_of(
    value: cst.CSTNode | None, context: Parsed, depth: int = 0
) -> list[cst.BaseExpression] | None:
    """Return the expressions that name the possible types of `value`; None if some are unknown.

    Args:
        value: the type argument of a region.
        context: the script.
        depth: the number of steps taken so far.
    """
    if depth > DEEPEST or not isinstance(value, cst.BaseExpression):
        return None
    if context.qualified_name(value) in TYPES or code(value) == "None":
        return [value]
    parts = _parts(value, context)
    if parts is None:
        return None
    followed = [types_of(part, context, depth + 1) for part in parts]
    known = [types for types in followed if types is not None]
    return [type_ for types in known for type_ in types] if len(known) == len(followed) else None


def _parts(value: cst.BaseExpression, context: Parsed) -> Iterable[cst.CSTNode | None] | None:
    """Return the expressions that `value` may be; None if they are not plain to see."""
    match value:
        case cst.IfExp():
            return [value.body, value.orelse]
        case cst.BooleanOperation():
            return [value.left, value.right]
        case cst.Name():
            return context.bound_values(value) or None
        case cst.Attribute(value=cst.Name(value="self")):
            return _assigned(value, context)
        case cst.Subscript():
            return _entries(value.value, context)
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="get"), value=table)):
            entries = _entries(table, context)
            return entries and [*entries, *(arg.value for arg in value.args[1:])]
        case cst.Call():
            functions = context.called(value)
            returns = [r for f in functions for r in context.below(f, cst.Return)]
            return [r.value for r in returns] or None
    return None


def _assigned(attribute: cst.Attribute, context: Parsed) -> list[cst.CSTNode | None] | None:
    """Return the values that the class around assigns to its attribute."""
    around = context.class_around(attribute)
    assigned = [
        value
        for target, value in context.attributes.get(attribute.attr.value, ())
        if context.class_around(target) is around and code(target.value) == "self"
    ]
    return [*assigned] or None


def _entries(table: cst.CSTNode, context: Parsed) -> list[cst.CSTNode | None] | None:
    """Return the values of a dictionary that is written in the script."""
    tables = context.bound_values(table) if isinstance(table, cst.Name) else [table]
    entries: list[cst.CSTNode | None] = []
    for written in tables:
        if not isinstance(written, cst.Dict):
            return None
        for element in written.elements:
            entries.append(element.value if isinstance(element, cst.DictElement) else None)
    return entries or None
