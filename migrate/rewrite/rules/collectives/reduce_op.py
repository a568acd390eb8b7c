"""`dist.reduce_op` is `dist.ReduceOp`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import names
from migrate.catalogue.target import BOTH
from migrate.catalogue.torch_distributed import NO_REDUCTION, REDUCTIONS
from migrate.rewrite.rule import Edit, Rule, RuleFinding, checked, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import string_value

NONE = names(*NO_REDUCTION)
# Modules whose collectives take the reduction as a text, and the texts that XLA does not know.
FUNCTIONAL = ("torch.ops._c10d_functional.", "torch.distributed._functional_collectives.")
UNKNOWN = frozenset({"avg", "bxor", "premul_sum"})


class ReduceOperation(Rule):
    """Write `dist.reduce_op.SUM`, the name of torch 1.0, as `dist.ReduceOp.SUM`.

    **Why.** `torch.distributed.reduce_op` is deprecated: it warns at every use and is to go. SUM, PRODUCT,
    MIN, MAX, BAND and BOR work on XLA.

    **Reported.** Reductions that XLA has not: BXOR and PREMUL_SUM raise (measured). For AVG there is the
    rule [average](average.md). Functional collectives take the reduction as a text: `"sum"` works, `"avg"`
    raises.

    Source: torch 2.9; torch_xla 2.9 (measured on two replicas).
    """

    name = "reduce-op"
    code = "XLA810"
    targets = BOTH
    beside_frameworks = True
    nodes = (cst.Attribute, cst.Name)
    words = "educeOp|reduce_op|_functional"
    of_names = True
    examples = (
        rewritten(
            """
            import torch.distributed as dist


            def total(x):
                dist.all_reduce(x, op=dist.reduce_op.SUM)
            """,
            """
            import torch.distributed as dist


            def total(x):
                dist.all_reduce(x, op=dist.ReduceOp.SUM)
            """,
        ),
        left_alone(
            """
            import torch.distributed as dist
            from reductions import reduce_op


            def largest(x):
                dist.all_reduce(x, op=dist.ReduceOp.MAX)
                return reduce_op.SUM
            """
        ),
        reported(
            """
            import torch.distributed as dist


            def parity(x):
                dist.all_reduce(x, op=dist.ReduceOp.BXOR)
            """,
            "BXOR raises on XLA",
        ),
        checked(
            """
            import torch
            import torch.distributed as dist
            import torch.distributed._functional_collectives as functional


            def mean(x):
                dist.all_reduce(x, op=dist.ReduceOp.AVG)  # XLA810


            def parity(x):
                dist.all_reduce(x, op=dist.ReduceOp.BXOR)  # XLA810


            def shard(x, size, group):
                return torch.ops._c10d_functional.reduce_scatter_tensor(  # XLA810
                    x, "avg", size, group
                )


            def reduced(x, group):
                total = functional.all_reduce(x, "sum", group)
                return total, functional.all_reduce(x, reduceOp="avg", group=group)  # XLA810
            """
        ),
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | RuleFinding]:
        """Yield the edit of one old name, or the finding at a reduction that XLA has not."""
        yield from self._functional(node, context)
        if not isinstance(node, cst.Attribute):
            return
        name = context.qualified_name(node) or ""
        if name in NONE and (entry := catalogue.of(name, context.target)):
            yield from self.report(node, f"ReduceOp.{node.attr.value} {entry.says()}")
        if name != "torch.distributed.reduce_op" or not isinstance(node.value, cst.BaseExpression):
            return
        above = context.parent(node)
        known = isinstance(above, cst.Attribute) and above.attr.value in REDUCTIONS
        if known:
            yield self.edit(
                node,
                lambda updated: updated.with_changes(attr=cst.Name("ReduceOp")),
                "reduce_op → ReduceOp",
                consumes=[node.attr],
            )

    def _functional(self, node: cst.CSTNode, context: Workspace) -> Iterable[RuleFinding]:
        """Yield the finding at a functional collective whose reduction XLA does not know."""
        call = context.parent(node)
        name = context.qualified_name(node) or ""
        if not name.startswith(FUNCTIONAL) or not isinstance(call, cst.Call):
            return
        if call.func is not node:
            return
        texts = [string_value(arg.value) or "" for arg in call.args]
        unknown = next((text for text in texts if text.lower() in UNKNOWN), None)
        if unknown is not None:
            what = "sum, then divide by the world size" if unknown == "avg" else "use another one"
            message = f'{name}: the reduction "{unknown}" raises on XLA: {what}'
            yield from self.report(node, message)
