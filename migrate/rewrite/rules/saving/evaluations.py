"""Evaluations that only one replica runs: `losses = estimate_loss()` under `if rank == 0:`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.replicas.wrapped import is_wrapped
from migrate.reading.values.saved import is_save

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

TELLS = frozenset({"print"})
# What the replicas may do together, before the rewrite and after it.
TOGETHER = ("torch.distributed", "torch_xla", "shims")


def evaluations(context: Workspace) -> Iterator[tuple[cst.If, cst.SimpleStatementLine]]:
    """Yield the statements below a test of the rank that run a function which calls the wrapped model.

    The forward of a wrapped model meets the other replicas. The function trains nothing, saves nothing, tells
    nothing and has no collective of its own, and all replicas have what it needs: they may all run it.
    """
    functions = {
        name: function
        for name, function in context.functions.items()
        if _evaluates(function, context)
    }
    for node in context.all_of(cst.If) if functions else ():
        if not isinstance(node.body, cst.IndentedBlock) or not context.guards.asks(node.test):
            continue
        for line in node.body.body:
            small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            call = small.value if isinstance(small, cst.Assign | cst.Expr) else None
            called = call.func if isinstance(call, cst.Call) else None
            if isinstance(called, cst.Name) and called.value in functions:
                yield node, cst.ensure_type(line, cst.SimpleStatementLine)


def _evaluates(function: cst.FunctionDef, context: Workspace) -> bool:
    if context.effects.of(function):
        return False
    runs = False
    for call in context.below(function.body, cst.Call):
        name = context.qualified_name(call.func) or ""
        plain = call.func.value if isinstance(call.func, cst.Name) else ""
        if name.startswith(TOGETHER) or is_save(call, context) or plain in TELLS:
            return False
        runs = runs or (isinstance(call.func, cst.Name) and is_wrapped(call.func, context))
    return runs and context.partly_bound.in_function(function) is None
