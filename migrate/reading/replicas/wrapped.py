"""Names of models that DistributedDataParallel or a similar class wraps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import WRAPPERS
from migrate.syntax.tree import is_attribute_of_self

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed


def is_wrapped(name: cst.CSTNode, context: Parsed) -> bool:
    """Whether some assignment to `name` wraps a model, also `DDP(net).to(device)`."""
    return any(True for _ in wraps(name, context))


def wraps(name: cst.CSTNode, context: Parsed) -> Iterator[cst.BaseExpression]:
    """Yield the values assigned to `name` that wrap a model.

    Args:
        name: a name, looked up in the scope that binds it, or an attribute of `self`, looked up in its class,
            or in any class if its own class assigns nothing to it.
        context: the script.
    """
    for value in _values(name, context):
        maker = context.qualified_name(_made_by(value)) or ""
        if isinstance(value, cst.BaseExpression) and maker.endswith(WRAPPERS):
            yield value


def _values(name: cst.CSTNode, context: Parsed) -> list[cst.Param | cst.BaseExpression | None]:
    if isinstance(name, cst.Name):
        return context.bound_values(name)
    if not is_attribute_of_self(name):
        return []
    values = [
        (context.class_around(target), value)
        for target, value in context.attributes.get(name.attr.value, ())
        if is_attribute_of_self(target)
    ]
    own = context.class_around(name)
    return [value for at, value in values if at is own] or [value for _, value in values]


def _made_by(value: cst.CSTNode | None) -> cst.CSTNode | None:
    """Return the function that makes `value`: `DDP` of `DDP(net).to(device)`."""
    while isinstance(value, cst.Call):
        if not isinstance(value.func, cst.Attribute) or not isinstance(value.func.value, cst.Call):
            return value.func
        value = value.func.value
    return None
