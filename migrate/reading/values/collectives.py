"""The calls of torch.distributed that all replicas make together, and their parameters."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import keyword_arg, with_args

if TYPE_CHECKING:
    from migrate.reading.script import Context
    from migrate.rewrite.rule import Edit, Rule

MODULES = ("torch.distributed.", "torch.distributed.distributed_c10d.")

# Parameters as in torch 2.9; the first names of the tensor collectives are those of the tensors.
TENSORS = {
    "all_reduce": ("tensor", "op", "group", "async_op"),
    "reduce": ("tensor", "dst", "op", "group", "async_op", "group_dst"),
    "broadcast": ("tensor", "src", "group", "async_op", "group_src"),
    "all_gather": ("tensor_list", "tensor", "group", "async_op"),
    "all_gather_into_tensor": ("output_tensor", "input_tensor", "group", "async_op"),
    "gather": ("tensor", "gather_list", "dst", "group", "async_op", "group_dst"),
    "scatter": ("tensor", "scatter_list", "src", "group", "async_op", "group_src"),
    "reduce_scatter": ("output", "input_list", "op", "group", "async_op"),
    "reduce_scatter_tensor": ("output", "input", "op", "group", "async_op"),
    "all_to_all": ("output_tensor_list", "input_tensor_list", "group", "async_op"),
    "all_to_all_single": (
        "output",
        "input",
        "output_split_sizes",
        "input_split_sizes",
        "group",
        "async_op",
    ),
}
OBJECTS = {
    "all_gather_object": ("object_list", "obj", "group"),
    "gather_object": ("obj", "object_gather_list", "dst", "group", "group_dst"),
    "broadcast_object_list": ("object_list", "src", "group", "device", "group_src"),
    "scatter_object_list": (
        "scatter_object_output_list",
        "scatter_object_input_list",
        "src",
        "group",
        "group_src",
    ),
}
POINT_TO_POINT = frozenset(
    {
        "send",
        "recv",
        "isend",
        "irecv",
        "batch_isend_irecv",
        "send_object_list",
        "recv_object_list",
    }
)


def called(call: cst.Call, context: Context) -> str | None:
    """Return the name of the function of torch.distributed that `call` calls, else None."""
    name = context.qualified_name(call.func) or ""
    for module in MODULES:
        rest = name.removeprefix(module)
        if rest != name and "." not in rest:
            return rest
    return None


def beside(call: cst.Call, name: str, context: Context) -> str:
    """Return how the script writes the function `name` of torch.distributed beside `call`.

    `dist.get_world_size` for a call of `dist.all_reduce`; the module is imported where the call has a
    bare name.
    """
    if isinstance(call.func, cst.Attribute):
        return f"{cst.Module(body=[]).code_for_node(call.func.value)}.{name}"
    return f"{context.imports.require('torch.distributed', 'dist')}.{name}"


def makes_gloo_group(value: cst.CSTNode | None, context: Context) -> bool:
    """Whether the expression `value` is certainly a group over gloo: `new_group(backend="gloo")`."""
    if isinstance(value, cst.Name):
        return makes_gloo_group(_other_value(value, context), context)
    if not isinstance(value, cst.Call):
        return False
    if called(value, context) == "new_group":
        return any(
            arg.keyword is not None
            and arg.keyword.value == "backend"
            and isinstance(arg.value, cst.SimpleString)
            and arg.value.raw_value == "gloo"
            for arg in value.args
        )
    if not isinstance(value.func, cst.Name):
        return False
    function = context.functions.get(value.func.value)
    last = function.body.body[-1] if function is not None else None
    returned = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None
    return isinstance(returned, cst.Return) and makes_gloo_group(returned.value, context)


def _other_value(name: cst.Name, context: Context) -> cst.BaseExpression | None:
    _, value = context.bound_to(name)
    return value if isinstance(value, cst.Call) else None


def as_shims(
    rule: Rule, call: cst.Call, context: Context, bound: dict[str, cst.Arg], dropped: Container[str]
) -> Edit:
    """Return the edit that makes `call` the one of the same name in shims, in the portable style.

    Args:
        rule: in whose name.
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
