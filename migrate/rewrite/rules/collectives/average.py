"""`ReduceOp.AVG` becomes a sum that is divided by the number of replicas."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.entry import names
from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_distributed import AVERAGE
from migrate.reading.values.collectives import TENSORS, called
from migrate.rewrite.rule import Edit, Rule, RuleFinding, left_alone, reported, rewritten
from migrate.rewrite.rules.collectives.written import as_shims, beside
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import bind, code, is_dotted_name, keyword
from migrate.syntax.walk import children

AVG = names(*AVERAGE)
RESULT = {
    "all_reduce": "tensor",
    "reduce": "tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
}


class Average(Rule):
    """Sum and divide instead of `ReduceOp.AVG`.

    **Why.** torch_xla has no average: `ReduceOp.AVG` raises a ValueError (measured).

    **What it does.** `dist.all_reduce(x, op=dist.ReduceOp.AVG)` becomes the sum, and
    `x.div_(dist.get_world_size())` the next statement. So do `reduce`, `reduce_scatter` and
    `reduce_scatter_tensor`. With `async_op=True` the division follows at once too: on XLA a handle waits
    for nothing, the operations of a graph are in order (measured; `handle.wait()` may stay).

    **Reported.** An average whose call is no statement of its own or no assignment
    (`return dist.all_reduce(…)`, in a comprehension), of something else than a name, an attribute or an
    element, and `ReduceOp.AVG` in a variable.

    Source: torch_xla 2.9, `torch_xla/distributed/xla_backend.py` (measured on two replicas).
    """

    name = "average"
    code = "XLA810"
    targets = BOTH
    on_torch_tpu = (
        "`ReduceOp.AVG` is not known to work on the group of torch_tpu; the sum and a division are."
    )
    beside_frameworks = True
    nodes = (cst.SimpleStatementLine, cst.Call)
    words = "reduce"
    examples = (
        rewritten(
            """
            import torch.distributed as dist


            def mean(loss, grad):
                dist.all_reduce(loss, op=dist.ReduceOp.AVG)  # over the replicas
                handle = dist.all_reduce(grad, dist.ReduceOp.AVG, async_op=True)
                handle.wait()
                return loss
            """,
            """
            import torch.distributed as dist


            def mean(loss, grad):
                dist.all_reduce(loss, op=dist.ReduceOp.SUM)  # over the replicas
                loss.div_(dist.get_world_size())
                handle = dist.all_reduce(grad, dist.ReduceOp.SUM, async_op=True)
                grad.div_(dist.get_world_size())
                handle.wait()
                return loss
            """,
        ),
        rewritten(
            """
            from torch.distributed import ReduceOp, reduce_scatter_tensor


            def shard(parts, total, group):
                reduce_scatter_tensor(parts[0], total, op=ReduceOp.AVG, group=group)
            """,
            """
            import torch.distributed as dist
            from torch.distributed import ReduceOp, reduce_scatter_tensor


            def shard(parts, total, group):
                reduce_scatter_tensor(parts[0], total, op=ReduceOp.SUM, group=group)
                parts[0].div_(dist.get_world_size(group))
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist


            def total(loss):
                dist.all_reduce(loss, op=dist.ReduceOp.SUM)
                return loss / dist.get_world_size()
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def start(grads):
                return [dist.all_reduce(g, op=dist.ReduceOp.AVG, async_op=True) for g in grads]
            """,
            "divide by the world size",
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one statement, or the finding at a call that is not edited."""
        if isinstance(node, cst.Call):
            op = self._op(node, context)
            if op is not None and context.portable:
                yield from self._by_shims(node, op, context)
                return
            if op is not None and self._statement(node, context) is None:
                message = f"{code(node.func)}: SUM here, then divide by the world size"
                yield from self.report(op, message)
            return
        assert isinstance(node, cst.SimpleStatementLine)
        call = self._call_of(node)
        op = self._op(call, context) if call is not None else None
        if (
            context.portable
            or call is None
            or op is None
            or self._statement(call, context) is not node
        ):
            return
        yield self._edit(node, call, op, context)

    def _by_shims(
        self, call: cst.Call, op: cst.BaseExpression, context: Workspace
    ) -> Iterable[Edit | RuleFinding]:
        """Yield the edits in the portable style: shims averages on every device."""
        if keyword(call, "group_dst") is not None:
            yield from self.report(op, f"{code(call.func)}: shims has dst=, the global rank")
            return
        mean = context.string("mean")
        yield self.edit(op, lambda _: mean, f"{code(op)} → {mean.value}", consumes=[op])
        yield as_shims(self, call, context, self._bound(call, context), ())

    def _op(self, call: cst.Call, context: Workspace) -> cst.BaseExpression | None:
        """Return the `ReduceOp.AVG` of a collective."""
        name = called(call, context)
        bound = bind(call, TENSORS[name]) if name in RESULT else None
        op = bound.get("op") if bound is not None else None
        return op.value if op is not None and context.qualified_name(op.value) in AVG else None

    def _call_of(self, line: cst.SimpleStatementLine) -> cst.Call | None:
        only = line.body[0] if len(line.body) == 1 else None
        value = only.value if isinstance(only, cst.Expr | cst.Assign) else None
        return value if isinstance(value, cst.Call) else None

    def _statement(self, call: cst.Call, context: Workspace) -> cst.SimpleStatementLine | None:
        """Return the line that is `call` and nothing else, where the division can follow it."""
        line = context.statement_around(call)
        if not isinstance(line, cst.SimpleStatementLine) or self._call_of(line) is not call:
            return None
        bound = self._bound(call, context)
        result = bound[RESULT[called(call, context) or ""]].value
        group = bound.get("group")
        plain = group is None or is_dotted_name(group.value)
        return line if plain and _is_place(result) else None

    def _bound(self, call: cst.Call, context: Workspace) -> dict[str, cst.Arg]:
        return bind(call, TENSORS[called(call, context) or ""]) or {}

    def _edit(
        self,
        line: cst.SimpleStatementLine,
        call: cst.Call,
        op: cst.BaseExpression,
        context: Workspace,
    ) -> Edit:
        bound = self._bound(call, context)
        group = code(bound["group"].value) if "group" in bound else ""
        result = code(bound[RESULT[called(call, context) or ""]].value)
        size = f"{beside(call, 'get_world_size', context)}({group})"
        division = cst.parse_statement(f"{result}.div_({size})")
        summed = _summed(op)

        def replace(updated: cst.SimpleStatementLine) -> cst.FlattenSentinel[cst.BaseStatement]:
            updated_node = updated.visit(_Average(code(op), summed))
            assert isinstance(updated_node, cst.SimpleStatementLine)
            return cst.FlattenSentinel([updated_node, division])

        message = f"ReduceOp.AVG → SUM, and {result} divided by {size}"
        return self.edit(line, replace, message, consumes=[op])


class _Average(cst.CSTTransformer):
    """Puts the sum in the place of the average."""

    def __init__(self, average: str, summed: cst.BaseExpression) -> None:
        super().__init__()
        self._average, self._summed = average, summed

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        if code(updated_node.value) == self._average:
            return updated_node.with_changes(value=self._summed)
        return updated_node


def _summed(op: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(op, cst.Attribute):
        return op.with_changes(attr=cst.Name("SUM"))
    return op


def _is_place(node: cst.BaseExpression) -> bool:
    """Whether `node` can be written twice with the same meaning: `x`, `p.grad.data`, `parts[0]`."""
    if isinstance(node, cst.Attribute | cst.Subscript):
        return _is_place(node.value) and not any(
            isinstance(part, cst.Call) for part in children(node)
        )
    return isinstance(node, cst.Name)
