"""A reduction that the XLA backend does not have."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.syntax.tree import string_value

# Modules whose collectives take the reduction as a text.
FUNCTIONAL = ("torch.ops._c10d_functional.", "torch.distributed._functional_collectives.")
UNKNOWN = frozenset({"avg", "bxor", "premul_sum"})


class Average(NamedHazard):
    """A reduction that the XLA backend does not have.

    **Why.** The XLA backend knows SUM, PRODUCT, MIN, MAX, BAND and BOR. Functional collectives take the
    reduction as a text: `"sum"` works, `"avg"` raises.

    **What to do.** SUM, then divide by the world size.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA810"
    name = "reduce-average"
    severity = Severity.ERROR
    examples = (
        example(
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
        example(
            """
            import torch.distributed as dist


            def mean(x):
                dist.all_reduce(x, op=dist.reduce_op.SUM)  # deprecated, and works
                return x / dist.get_world_size()
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist


        def mean(x):
            dist.all_reduce(x, op=dist.ReduceOp.SUM)
            x /= dist.get_world_size()
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one name, or a functional collective whose reduction is not known."""
        yield from super().find(node, facts)
        call = facts.context.parent(node)
        name = facts.names.of(node) or ""
        if not name.startswith(FUNCTIONAL) or not isinstance(call, cst.Call):
            return
        if call.func is not node:
            return
        texts = [string_value(arg.value) or "" for arg in call.args]
        unknown = next((text for text in texts if text.lower() in UNKNOWN), None)
        if unknown is not None:
            what = "sum, then divide by the world size" if unknown == "avg" else "use another one"
            yield self.hit(node, f'{name}: the reduction "{unknown}" raises on XLA: {what}')
