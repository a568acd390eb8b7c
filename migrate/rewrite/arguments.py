"""What the calls of a script pass for a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.tree import bind

if TYPE_CHECKING:
    from migrate.rewrite.context import Context


def passed_for(name: cst.Name, context: Context) -> list[cst.BaseExpression]:
    """Return what each call of the script passes for the parameter that `name` mentions.

    Empty where `name` is no parameter of a function of the module, where one call passes nothing for it
    or cannot be read, and where the function is used other than called.
    """
    owner, parameter = context.bound_to(name)
    if not isinstance(owner, cst.FunctionDef) or not isinstance(parameter, cst.Param):
        return []
    if context.functions.get(owner.name.value) is not owner:
        return []
    parameters = [one.name.value for one in (*owner.params.params, *owner.params.kwonly_params)]
    found = []
    for mention in context.devices.mentions(owner.name):
        if mention is owner.name:
            continue
        call = context.parent(mention)
        bound = (
            bind(call, parameters) if isinstance(call, cst.Call) and call.func is mention else None
        )
        if bound is None or name.value not in bound:
            return []
        found.append(bound[name.value].value)
    return found
