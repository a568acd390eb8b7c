"""Calls of torch.distributed that all replicas make together, and their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.model.processes.meetings import MPI_WORLD as MPI_WORLD
from migrate.model.processes.meetings import OBJECTS as OBJECTS
from migrate.model.processes.meetings import OF_MPI as OF_MPI
from migrate.model.processes.meetings import OF_XLA as OF_XLA
from migrate.model.processes.meetings import TENSORS as TENSORS

if TYPE_CHECKING:
    from migrate.reading.script import Script

MODULES = ("torch.distributed.", "torch.distributed.distributed_c10d.")

# Method of DDP: its argument replaces the sum of the gradients.
REGISTER_HOOK = "register_comm_hook"
POINT_TO_POINT = words("send recv isend irecv batch_isend_irecv send_object_list recv_object_list")


def called(call: cst.Call, context: Script) -> str | None:
    """Return the name of the function of torch.distributed that `call` calls, else None."""
    name = context.qualified_name(call.func) or ""
    for module in MODULES:
        rest = name.removeprefix(module)
        if rest != name and "." not in rest:
            return rest
    return None


def is_comm_hook(node: cst.CSTNode, context: Script) -> bool:
    """Whether `node` names, or is a part of, the argument of a `register_comm_hook` call."""
    for above in context.within_statement(node):
        called = above.func if isinstance(above, cst.Call) else None
        if isinstance(called, cst.Attribute) and called.attr.value == REGISTER_HOOK:
            return True
    return False


def makes_gloo_group(value: cst.CSTNode | None, context: Script) -> bool:
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
    return any(
        isinstance(returned := _last(function), cst.Return)
        and makes_gloo_group(returned.value, context)
        for function in context.called(value)
    )


def _last(function: cst.FunctionDef) -> cst.CSTNode | None:
    last = function.body.body[-1]
    return last.body[-1] if isinstance(last, cst.SimpleStatementLine) else None


def _other_value(name: cst.Name, context: Script) -> cst.BaseExpression | None:
    _, value = context.bound_to(name)
    return value if isinstance(value, cst.Call) else None
