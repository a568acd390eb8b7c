"""Items that a script uses as counters: `state["step"] = 0`, then `state["step"] += 1`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed


def counted_items(context: Parsed) -> frozenset[str]:
    """Return the keys under which the script puts whole numbers alone, and counts."""
    starts: set[str] = set()
    others: set[str] = set()
    for key, value in _put(context):
        if isinstance(value, cst.Integer):
            starts.add(key)
        elif not _counts(value):
            others.add(key)
    return frozenset(starts - others)


def _put(context: Parsed) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the keys of items, each with a value that is put under it or added to it."""
    for assign in context.all_of(cst.Assign):
        for target in assign.targets:
            if (key := _key(target.target)) is not None:
                yield key, assign.value
    for added in context.all_of(cst.AugAssign):
        if (key := _key(added.target)) is not None:
            yield key, added.value
    for element in context.all_of(cst.DictElement):
        if (key := string_value(element.key)) is not None:
            yield key, element.value
    for call in context.all_of(cst.Call):
        if isinstance(call.func, cst.Name) and call.func.value == "dict":
            yield from ((arg.keyword.value, arg.value) for arg in call.args if arg.keyword)


def _key(target: cst.BaseExpression) -> str | None:
    """Return the key of `x["key"]`; None for another target."""
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return None
    index = target.slice[0].slice
    return string_value(index.value) if isinstance(index, cst.Index) else None


def _counts(value: cst.BaseExpression) -> bool:
    """Whether `value` is one more or less: `step + 1`."""
    return (
        isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.Add | cst.Subtract)
        and isinstance(value.right, cst.Integer)
    )
