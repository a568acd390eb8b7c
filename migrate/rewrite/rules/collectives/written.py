"""Calls of torch.distributed as the script writes them, and as those of shims."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.edits.nodes import keyword_arg, with_args

if TYPE_CHECKING:
    from migrate.rewrite.rule import Edit, Rule
    from migrate.rewrite.workspace import Workspace
from migrate.reading.values.collectives import called


def beside(call: cst.Call, name: str, context: Workspace) -> str:
    """Return how the script writes the function `name` of torch.distributed beside `call`.

    `dist.get_world_size` for a call of `dist.all_reduce`; the module is imported where the call has a
    bare name.
    """
    if isinstance(call.func, cst.Attribute):
        return f"{cst.Module(body=[]).code_for_node(call.func.value)}.{name}"
    return f"{context.imports.require('torch.distributed', 'dist')}.{name}"


def as_shims(
    rule: Rule,
    call: cst.Call,
    context: Workspace,
    bound: dict[str, cst.Arg],
    dropped: Container[str],
) -> Edit:
    """Return the edit that makes `call` the one of the same name in shims, in the portable style.

    Args:
        rule: the rule that makes the edits.
        call: a call of torch.distributed.
        context: the script.
        bound: its arguments, by parameter.
        dropped: the parameters that shims does not have.
    """
    name = called(call, context)
    function = cst.parse_expression(f"{context.imports.require('shims')}.{name}")
    gone = [arg for parameter, arg in bound.items() if parameter in dropped]
    kept = [(p, call.args.index(arg)) for p, arg in bound.items() if p not in dropped]
    first = min((call.args.index(arg) for arg in gone), default=len(call.args))

    def replace(updated: cst.Call) -> cst.Call:
        args = []
        for parameter, index in kept:
            arg = updated.args[index]
            named = arg.keyword is None and index > first
            args.append(keyword_arg(parameter, arg.value) if named else arg)
        if not args:
            return cst.Call(function, lpar=updated.lpar, rpar=updated.rpar)
        return with_args(updated, args).with_changes(func=function)

    return rule.edit(call, replace, f"{name} → shims.{name}", consumes=[call.func, *gone])
