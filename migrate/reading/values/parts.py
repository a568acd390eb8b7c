"""Lists of views of one device tensor: `[b[i] for i in range(n)]`, `b.unbind()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.syntax.tree import last_part, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

CUTS = words("chunk hsplit split split_with_sizes tensor_split unbind vsplit")
DEEPEST = 4


def holds_views(node: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> bool:
    """Whether `node` is a list or tuple of parts of one tensor of the device.

    The entry of a dictionary, `group["views"]`, counts if the class or the function around puts such a list
    under the name.
    """
    if isinstance(node, cst.ListComp):
        return _takes_parts(node, facts)
    if isinstance(node, cst.Call):
        if last_part(node.func) in ("list", "tuple") and len(node.args) == 1:
            inner = node.args[0].value
            return facts.values.on_device(inner) or holds_views(inner, facts, depth)
        if last_part(node.func) not in CUTS or not isinstance(node.func, cst.Attribute):
            return False
        of_torch = facts.names.of(node.func) is not None
        cut = node.args[0].value if of_torch and node.args else node.func.value
        return facts.values.on_device(cut)
    if not depth:
        return False
    if isinstance(node, cst.Name):
        return any(
            isinstance(value, cst.BaseExpression) and holds_views(value, facts, depth - 1)
            for value in facts.context.bound_values(node)
        )
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        index = node.slice[0].slice
        key = string_value(index.value) if isinstance(index, cst.Index) else None
        return key is not None and any(
            holds_views(value, facts, depth - 1) for value in _put_under(key, node, facts)
        )
    return False


def _takes_parts(comprehension: cst.ListComp, facts: Facts) -> bool:
    """Whether each element is a part of one tensor, by the variable of the loop."""
    part = comprehension.elt
    if not isinstance(part, cst.Subscript) or not facts.values.on_device(part.value):
        return False
    turns = {name.value for name in nodes_of(comprehension.for_in.target, cst.Name)}
    return any(
        name.value in turns for element in part.slice for name in nodes_of(element, cst.Name)
    )


def _put_under(key: str, node: cst.CSTNode, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what the class or the function around `node` puts under `key` into a dictionary."""
    context = facts.context
    around = context.class_around(node) or context.function_around(node) or context.module
    for arg in nodes_of(around, cst.Arg):
        if arg.keyword is not None and arg.keyword.value == key:
            yield arg.value
    for element in nodes_of(around, cst.DictElement):
        if string_value(element.key) == key:
            yield element.value
