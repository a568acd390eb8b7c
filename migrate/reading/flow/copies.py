"""Copies of the weights that follow a model: averages, shadows, targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import last_part
from migrate.reading.values.kind import Kind
from migrate.reading.values.words import MODEL, UPDATES

if TYPE_CHECKING:
    from migrate.reading.facts import Facts


def updates_copy(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` updates an object that was made of a model: `average.update_parameters(model)`."""
    func = call.func
    if not isinstance(func, cst.Attribute) or not UPDATES.fullmatch(func.attr.value):
        return False
    if not isinstance(facts.context.parent(call), cst.Expr):
        return False
    return any(_holds_weights(value, facts) for value in _made(func.value, facts))


def _made(receiver: cst.BaseExpression, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield what `receiver` is given in the script."""
    values: list[cst.BaseExpression | None]
    if isinstance(receiver, cst.Attribute):
        values = [value for _, value in facts.context.attributes.get(receiver.attr.value, [])]
    elif isinstance(receiver, cst.Name):
        values = [given.value for given in facts.bindings.given(receiver)]
    else:
        return
    for value in values:
        parts = (value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,)
        yield from (part for part in parts if isinstance(part, cst.BaseExpression))


def _holds_weights(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is made of a model: `EMA(model)`, `deepcopy(net)`, `EMA(model).cuda()`."""
    while (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and isinstance(value.func.value, cst.Call)
    ):
        value = value.func.value
    if not isinstance(value, cst.Call):
        return False
    return any(_is_model(arg.value, facts) for arg in value.args)


def _is_model(node: cst.BaseExpression, facts: Facts) -> bool:
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    if (
        facts.values.kind(node) is Kind.MODEL
        or facts.context.place(node) in facts.context.calls.models
    ):
        return True
    return bool(MODEL.fullmatch(last_part(node)))
