"""States of random generators in CUDA's form, so that the CUDA script and its rewrite load each other's."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst
from libcst.helpers import parse_template_expression

from migrate.rewrite.edits.nodes import operand
from migrate.rewrite.workspace import Workspace


def in_bytes(number: cst.Call, of_all: bool, context: Workspace) -> cst.BaseExpression:
    """Return XLA's state as the 16 bytes of a state of CUDA: the number is the seed, the position is 0.

    Args:
        number: the call that returns XLA's state.
        of_all: whether the script keeps a list with the states of all devices. A replica has one device.
        context: the script.
    """
    text = f"{context.imports.require('torch')}.ByteTensor([*{{number}}.to_bytes(16, {{little}})])"
    state = parse_template_expression(
        f"[{text}]" if of_all else text, number=number, little=context.string("little")
    )
    return cst.ensure_type(state, cst.List if of_all else cst.Call)


def number_of(state: cst.BaseExpression, of_all: bool, context: Workspace) -> cst.BaseExpression:
    """Return XLA's number of a state in CUDA's form: its seed, the first 8 bytes.

    Args:
        state: the state, or a list with the states of all devices.
        of_all: whether it is such a list. A replica has one device.
        context: the script.
    """
    first = "{state}[0]" if of_all else "{state}"
    return parse_template_expression(
        f"int.from_bytes({first}[:8].tolist(), {{little}})",
        state=operand(state),
        little=context.string("little"),
    )


def is_only_put_back(
    call: cst.Call, state: cst.BaseExpression | None, names: Collection[str], context: Workspace
) -> bool:
    """Whether a variable only holds a state of this device until the same function puts it back.

    Args:
        call: the call that returns the state, or puts it back.
        state: the state that is put back, or None.
        names: qualified names of the functions that return a state or put it back.
        context: the script.
    """
    assign = context.parent(call)
    if state is not None:
        variable = state
    elif isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        variable = assign.targets[0].target
    else:
        return False
    if not isinstance(variable, cst.Name):
        return False
    function, _ = context.bound_to(variable)
    if not isinstance(function, cst.FunctionDef):
        return False
    uses = [use for use in context.references(variable.value) if _is_variable(use, context)]
    return all(
        context.bound_to(use)[0] is function and _keeps(use, names, context) for use in uses
    ) and any(isinstance(context.parent(use), cst.AssignTarget) for use in uses)


def _is_variable(use: cst.Name, context: Workspace) -> bool:
    above = context.parent(use)
    if isinstance(above, cst.Attribute):
        return above.value is use
    return not (isinstance(above, cst.Arg) and above.keyword is use)


def _keeps(use: cst.Name, names: Collection[str], context: Workspace) -> bool:
    """Whether the variable is assigned a state there, or is the state that is put back."""
    above = context.parent(use)
    if isinstance(above, cst.AssignTarget):
        assign = context.parent(above)
        assert isinstance(assign, cst.Assign)
        value = assign.value
        return (
            len(assign.targets) == 1
            and isinstance(value, cst.Call)
            and context.qualified_name(value.func) in names
        )
    call = context.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and context.qualified_name(call.func) in names
