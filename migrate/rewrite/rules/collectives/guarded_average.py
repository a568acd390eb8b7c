"""The average after `dist.reduce` is taken on all replicas."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.reading.replicas.first_replica import joined, parts
from migrate.reading.values.collectives import TENSORS, called
from migrate.rewrite.edits.branch import body_of
from migrate.rewrite.rule import (
    Edit,
    Replacement,
    Rule,
    RuleFinding,
    left_alone,
    reported,
    rewritten,
)
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code


class GuardedAverage(Rule):
    """Divide what `dist.reduce` summed on all replicas.

    **Why.** `if dist.get_rank() == 0: losses /= world_size` computes on the device in one replica. There the
    graph has an operation that the others' have not; where a collective comes into the same graph, the
    replicas wait for each other for ever.

    **What it does.** The test of the rank goes, other conditions stay. `dist.reduce` leaves something of
    no meaning in the other replicas: it may be divided, too.

    **Left alone.** Numbers on the host, and divisions after `all_reduce`, which all replicas make.

    **Reported.** A division below a test of the rank that has an `else`, or that does more.

    Source: torch_xla 2.9, `ProcessGroupXla.reduce`.
    """

    name = "guarded-average"
    code = "XLA313"
    nodes = (cst.If,)
    words = "reduce"
    examples = (
        rewritten(
            """
            import torch
            import torch.distributed as dist


            def reduce_losses(losses, average=True):
                values = torch.stack(losses)
                dist.reduce(values, dst=0)
                if dist.get_rank() == 0 and average:
                    # only the main process has the sum
                    values /= dist.get_world_size()
                dist.reduce(losses[0], dst=0)
                if dist.get_rank() == 0: losses[0].div_(dist.get_world_size())
                return values
            """,
            """
            import torch
            import torch.distributed as dist


            def reduce_losses(losses, average=True):
                values = torch.stack(losses)
                dist.reduce(values, dst=0)
                if average:
                    # only the main process has the sum
                    values /= dist.get_world_size()
                dist.reduce(losses[0], dst=0)
                losses[0].div_(dist.get_world_size())
                return values
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist


            def mean(loss, rank, average):
                dist.all_reduce(loss)
                if average:
                    loss /= dist.get_world_size()
                seconds = 3.0
                if rank == 0:
                    seconds /= 2
                return loss, seconds
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def mean(loss, rank):
                dist.reduce(loss, dst=0)
                if rank == 0:
                    loss /= dist.get_world_size()
                    print("averaged")
            """,
            "in some replicas only",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one test of the rank, or the finding."""
        assert isinstance(node, cst.If)
        block = context.parent(node)
        if not isinstance(block, cst.IndentedBlock | cst.Module) or not context.guards.asks(
            node.test
        ):
            return
        summed = {code(call) for call in _reduced(block.body[: block.body.index(node)], context)}
        divided = [_divided(statement) for statement in node.body.body]
        if not any(expression is not None and code(expression) in summed for expression in divided):
            return
        if node.orelse is not None or any(expression is None for expression in divided):
            message = "divides on the device in some replicas only: let all replicas divide"
            yield from self.report(node.test, message)
            return
        which = [
            index for index, part in enumerate(parts(node.test)) if not context.guards.asks(part)
        ]

        def replace(updated: cst.If) -> Replacement:
            tests = list(parts(updated.test))
            if which:
                return updated.with_changes(test=joined(tuple(tests[index] for index in which)))
            return body_of(updated, updated.body)

        yield self.edit(node, replace, f"`if {code(node.test)}`: all replicas divide")


def _reduced(statements: Iterable[cst.CSTNode], context: Workspace) -> Iterable[cst.BaseExpression]:
    """Yield what the statements sum up with `dist.reduce`."""
    for line in statements:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            call = statement.value if isinstance(statement, cst.Expr) else None
            if isinstance(call, cst.Call) and called(call, context) == "reduce":
                bound = bind(call, TENSORS["reduce"])
                if bound is not None and "tensor" in bound:
                    yield bound["tensor"].value


def _divided(line: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what the statement divides in place: `x /= n`, `x.div_(n)`."""
    only: cst.CSTNode | None = line
    if isinstance(line, cst.SimpleStatementLine):
        only = line.body[0] if len(line.body) == 1 else None
    if isinstance(only, cst.AugAssign) and isinstance(only.operator, cst.DivideAssign):
        return only.target
    call = only.value if isinstance(only, cst.Expr) else None
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        return call.func.value if call.func.attr.value == "div_" else None
    return None
