"""What the calls of a script pass for a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import bind

if TYPE_CHECKING:
    from migrate.reading.script import Script


def calls_of(function: cst.FunctionDef, context: Script) -> list[cst.Call]:
    """Return the calls of a function of the module; none where it is used other than called."""
    if context.functions.get(function.name.value) is not function:
        return []
    found = []
    for mention in context.devices.mentions(function.name):
        call = context.parent(mention)
        if mention is function.name:
            continue
        if not isinstance(call, cst.Call) or call.func is not mention:
            return []
        found.append(call)
    return found


def passed_for(name: cst.Name, context: Script) -> list[cst.BaseExpression]:
    """Return what each call of the script passes for the parameter that `name` mentions.

    Empty where `name` is no parameter of a function of the module, where one call passes nothing for it
    or cannot be read, and where the function is used other than called.
    """
    owner, parameter = context.bound_to(name)
    if not isinstance(owner, cst.FunctionDef) or not isinstance(parameter, cst.Param):
        return []
    parameters = [one.name.value for one in (*owner.params.params, *owner.params.kwonly_params)]
    found = []
    for call in calls_of(owner, context):
        bound = bind(call, parameters)
        if bound is None or name.value not in bound:
            return []
        found.append(bound[name.value].value)
    return found
