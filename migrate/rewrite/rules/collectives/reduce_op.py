"""`dist.reduce_op` is `dist.ReduceOp`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue import catalogue
from migrate.catalogue.entry import names
from migrate.catalogue.torch_distributed import NO_REDUCTION, REDUCTIONS
from migrate.rewrite.rule import Edit, Finding, Rule, left_alone, reported, rewritten
from migrate.rewrite.workspace import Workspace

NONE = names(*NO_REDUCTION)


class ReduceOperation(Rule):
    """Write `dist.reduce_op.SUM`, the name of torch 1.0, as `dist.ReduceOp.SUM`.

    **Why.** `torch.distributed.reduce_op` is deprecated: it warns at every use and is to go. SUM, PRODUCT,
    MIN, MAX, BAND and BOR work on XLA.

    **Reported.** Reductions that XLA has not: BXOR and PREMUL_SUM raise (measured). For AVG there is the
    rule [average](average.md).

    Source: torch 2.9; torch_xla 2.9 (measured on two replicas).
    """

    name = "reduce-op"
    code = "XLA810"
    nodes = (cst.Attribute,)
    words = "educeOp|reduce_op"
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
    )

    def find(self, node: cst.CSTNode, context: Workspace) -> Iterable[Edit | Finding]:
        """Yield the edit of one old name, or the finding at a reduction that XLA has not."""
        assert isinstance(node, cst.Attribute)
        name = context.qualified_name(node) or ""
        if name in NONE and (entry := catalogue.of(name)):
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
