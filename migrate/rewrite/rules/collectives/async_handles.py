"""Handles of collectives that were started with `async_op=True`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.values.collectives import TENSORS, called
from migrate.rewrite.rule import Edit, Rule, RuleFinding, Safety, left_alone, reported
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code


class AsyncHandles(Rule):
    """Report a wait with a time limit for a collective.

    **Why.** On XLA a collective is an operation of the graph: what reads the tensor comes after it,
    waited for or not. Its handle is complete at once. `wait()`, `is_completed()`, `synchronize()`,
    `result()` and `get_future()` work (measured) and stay; `wait(timeout)` raises.

    **What to do.** `handle.wait()`, without the time.

    Source: torch_xla 2.9 (measured on two replicas).
    """

    name = "async-handles"
    code = "XLA834"
    safety = Safety.REPORT_ONLY
    nodes = (cst.Call,)
    words = "wait"
    examples = (
        left_alone(
            """
            import torch.distributed as dist


            def reduce(grads, process):
                handle = dist.all_reduce(grads[0], async_op=True)
                handles = [dist.all_reduce(g, async_op=True) for g in grads]
                while not handle.is_completed():
                    pass
                for handle in handles:
                    handle.wait()
                process.wait(timeout=3)
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def reduce(grads, limit):
                handle = dist.all_reduce(grads[0], async_op=True)
                handle.wait(timeout=limit)
            """,
            "raises on XLA",
        ),
        reported(
            """
            import torch.distributed as dist


            def reduce(grads, limit):
                handles = []
                for g in grads:
                    handles.append(dist.all_reduce(g, async_op=True))
                for handle in handles:
                    handle.wait(limit)
            """,
            "raises on XLA",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the finding at one wait with a time limit."""
        assert isinstance(node, cst.Call)
        func = node.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "wait" or not node.args:
            return
        if self._is_handle(func.value, context):
            message = f"{code(node)} raises on XLA: `{code(func)}()`, there is nothing to wait for"
            yield from self.report(node, message)

    def _is_handle(self, node: cst.BaseExpression, context: Workspace) -> bool:
        """Whether `node` is what a collective of the same function returned."""
        if isinstance(node, cst.Call):
            return _is_async(node, context)
        if not isinstance(node, cst.Name):
            return False
        values = [value for value in context.bound_values(node) if isinstance(value, cst.Call)]
        if any(_is_async(value, context) for value in values):
            return True
        looped = any(
            isinstance(context.parent(use), cst.For) for use in context.references(node.value)
        )
        around = context.function_around(node)
        return looped and any(
            isinstance(call, cst.Call)
            and _is_async(call, context)
            and context.function_around(call) is around
            and not isinstance(context.parent(call), cst.AssignTarget | cst.Expr)
            for call in context.nodes
        )


def _is_async(call: cst.Call, context: Workspace) -> bool:
    name = called(call, context)
    bound = bind(call, TENSORS[name]) if name in TENSORS else None
    wanted = bound.get("async_op") if bound else None
    return wanted is not None and code(wanted.value) not in ("False", "0")
