"""Which expressions name a device, and which calls move a value to one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.tree import keyword, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.rewrite.context import Context

CUDA = re.compile(r"cuda(:\d+)?")


def names_cuda(node: cst.CSTNode | None) -> bool:
    """Whether `node` is a literal for a CUDA device: 'cuda', 'cuda:0', f'cuda:{rank}'."""
    if isinstance(node, cst.FormattedString) and node.parts:
        first = node.parts[0]
        return isinstance(first, cst.FormattedStringText) and first.value == "cuda:"
    value = string_value(node)
    return value is not None and CUDA.fullmatch(value) is not None


def is_cuda_device(node: cst.CSTNode | None, context: Context) -> bool:
    """Whether the expression `node` is certainly a CUDA device: a literal, or the replica's index."""
    return names_cuda(node) or context.ranks.is_rank(node)


def is_accelerator(node: cst.CSTNode | None, context: Context) -> bool:
    """Whether the expression `node` is an accelerator, CUDA or XLA, also by way of a name.

    `"cuda" if torch.cuda.is_available() else "cpu"` is one: the script means to train on it.
    """
    if string_value(node) == "xla" or is_cuda_device(node, context):
        return True
    if isinstance(node, cst.IfExp):
        return is_accelerator(node.body, context)
    if isinstance(node, cst.Call):
        is_device = context.qualified_name(node.func) == "torch.device" and bool(node.args)
        return is_device and is_accelerator(node.args[0].value, context)
    if isinstance(node, cst.Name):
        _, value = context.bound_to(node)
        itself = value is None or isinstance(value, cst.Param | cst.Name)
        return not itself and is_accelerator(value, context)
    return False


def device_argument(call: cst.Call) -> cst.Arg | None:
    """Return the argument of `x.to(…)` that may be a device."""
    named = keyword(call, "device")
    if named is not None:
        return named
    first = call.args[0] if call.args else None
    return first if first is not None and first.keyword is None and not first.star else None


def is_move(call: cst.Call, context: Context) -> bool:
    """Whether `call` moves its receiver to an accelerator: `x.to(rank)`, `x.cuda()`, `x.to('xla')`."""
    if not isinstance(call.func, cst.Attribute):
        return False
    if call.func.attr.value == "cuda":
        return context.qualified_name(call.func) is None
    if call.func.attr.value != "to":
        return False
    arg = device_argument(call)
    return arg is not None and is_accelerator(arg.value, context)


def moves(root: cst.CSTNode, context: Context) -> Iterator[cst.Call]:
    """Yield the calls at and below `root` that move a value to an accelerator."""
    return (call for call in nodes_of(root, cst.Call) if is_move(call, context))
