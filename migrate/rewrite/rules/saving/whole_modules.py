"""Modules that a script loads as they are, not by their state dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.values.devices import is_move, moves
from migrate.reading.values.whole_modules import Variable, is_module, uses_of
from migrate.syntax.tree import bind, code, parameters_of

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace


def left_on_host(load: cst.Call, context: Workspace) -> Variable | None:
    """Return what holds a module that `load`, a call of torch.load, gives, and that nothing moves later.

    `None` where it is no module, as far as the script shows, or is moved.
    """
    node: cst.CSTNode = load
    above = context.parent(node)
    # What is taken of it, or called on it, in the same expression: `torch.load(path)["model"].float()`.
    while (isinstance(above, cst.Subscript | cst.Attribute) and above.value is node) or (
        isinstance(above, cst.Call) and above.func is node
    ):
        if isinstance(above, cst.Call) and is_move(above, context):
            return None
        node, above = above, context.parent(above)
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return None
    target = above.targets[0].target
    if not isinstance(target, Variable) or not is_module(target, context):
        return None
    line = context.position(load).line
    later = (use for use in uses_of(target, context) if context.position(use).line > line)
    return None if any(_moves(use, context) for use in later) else target


def _moves(use: Variable, context: Workspace) -> bool:
    """Whether the call around `use` moves it, or hands it to a function that does, or that may."""
    above = context.parent(use)
    call = context.parent(above)
    if not isinstance(call, cst.Call):
        return False
    if not isinstance(above, cst.Arg):
        return call.func is above and is_move(call, context)
    if context.place(call) not in context.calls.moving:
        return False
    here = context.called(call)
    return not here or any(_moves_parameter(function, call, above, context) for function in here)


def _moves_parameter(
    function: cst.FunctionDef, call: cst.Call, arg: cst.Arg, context: Workspace
) -> bool:
    names = parameters_of(function, call)
    bound = bind(call, names)
    passed = (
        {name for name, argument in bound.items() if argument is arg}
        if bound is not None
        else set(names)
    )
    return any(
        isinstance(move.func, cst.Attribute) and code(move.func.value) in passed
        for move in moves(function.body, context)
    )
