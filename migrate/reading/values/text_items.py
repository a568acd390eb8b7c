"""Texts that a script writes in a table and iterates over: `{"walk": {"text": "go"}}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import last_part, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.script import Script

TABLES = frozenset({"OrderedDict", "dict", "list", "tuple"})
TEXTS = cst.SimpleString | cst.ConcatenatedString | cst.FormattedString


def is_text_item(node: cst.CSTNode, context: Script) -> bool:
    """Whether `node` is a text of each row of a written table, whose rows a loop around it binds."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
        return False
    index = node.slice[0].slice
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    loop = next((above for above in context.ancestors(node) if isinstance(above, cst.For)), None)
    if key is None or loop is None:
        return False
    last = loop.target.elements[-1].value if isinstance(loop.target, cst.Tuple) else loop.target
    if not isinstance(last, cst.Name) or last.value != node.value.value:
        return False
    rows = list(_rows(loop.iter, context))
    is_set = any(
        isinstance(target.target, cst.Subscript) and target.target.deep_equals(node)
        for target in nodes_of(loop.body, cst.AssignTarget)
    )
    return bool(rows) and not is_set and all(_is_text_at(key, row, context) for row in rows)


def _rows(table: cst.BaseExpression, context: Script) -> Iterator[cst.BaseExpression]:
    """Yield the rows of a table as it is written: the values of a dictionary, the elements of a list."""
    if isinstance(table, cst.Call) and isinstance(table.func, cst.Attribute):
        if table.func.attr.value in ("items", "values"):
            yield from _rows(table.func.value, context)
        return
    value = _written(table, context)
    if isinstance(value, cst.Call) and len(value.args) == 1 and last_part(value.func) in TABLES:
        value = value.args[0].value
    if isinstance(value, cst.Dict | cst.List | cst.Tuple):
        yield from (element.value for element in value.elements)


def _is_text_at(key: str, row: cst.BaseExpression, context: Script) -> bool:
    row = _written(row, context)
    if not isinstance(row, cst.Dict):
        return False
    values = [
        element.value
        for element in row.elements
        if isinstance(element, cst.DictElement) and string_value(element.key) == key
    ]
    return bool(values) and isinstance(_written(values[-1], context), TEXTS)


def _written(node: cst.BaseExpression, context: Script) -> cst.BaseExpression:
    """Return the value that a variable is bound to, or the expression itself."""
    value = context.bound_to(node)[1] if isinstance(node, cst.Name) else node
    return value if isinstance(value, cst.BaseExpression) else node
