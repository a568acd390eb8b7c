"""Modules that a script saves as they are, not by their state dict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.launchers import DDP
from migrate.syntax.tree import is_attribute_of_self

if TYPE_CHECKING:
    from migrate.reading.script import Script

Variable = cst.Name | cst.Attribute
COPIES = frozenset({"copy.copy", "copy.deepcopy"})
# Methods that only a module has, among what scripts save and load.
OF_MODULES = frozenset({"parameters", "named_parameters", "train", "eval", "zero_grad"})


def is_module(node: cst.BaseExpression, context: Script, *, by_call: bool = True) -> bool:
    """Whether the script uses what `node` names as a module: calls it, asks for its parameters, wraps it.

    Args:
        node: an expression.
        context: the script.
        by_call: whether a call of it is enough; functions are called too.
    """
    if not isinstance(node, Variable):
        return False
    if isinstance(node, cst.Name):
        _, value = context.bound_to(node)
        if isinstance(value, cst.Call) and _makes_module(value, context):
            return True
    return any(_as_module(use, context, by_call) for use in uses_of(node, context))


def _makes_module(call: cst.Call, context: Script) -> bool:
    """Whether `call` wraps a module, copies one, or ends in methods of one: `copy.deepcopy(net).eval()`."""
    while isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Call):
        if call.func.attr.value in OF_MODULES:
            return True
        call = call.func.value
    name = context.qualified_name(call.func)
    copied = call.args[0].value if name in COPIES and call.args else None
    return name in DDP or (copied is not None and is_module(copied, context, by_call=False))


def uses_of(node: Variable, context: Script) -> Iterator[Variable]:
    """Yield the mentions of the variable or attribute `node`, itself among them."""
    for use in context.mentions(node):
        if isinstance(node, cst.Name):
            mine, its = context.bindings(node), context.bindings(use)
            if mine and its and mine[0].node is its[0].node:
                yield use
        elif not is_attribute_of_self(node) or (
            context.class_around(use) is context.class_around(node)
        ):
            yield use


def _as_module(use: Variable, context: Script, by_call: bool) -> bool:
    if context.place(use) in context.calls.models:
        return True
    above = context.parent(use)
    if isinstance(above, cst.Attribute) and above.value is use:
        return above.attr.value in OF_MODULES and isinstance(context.parent(above), cst.Call)
    return by_call and isinstance(above, cst.Call) and above.func is use
