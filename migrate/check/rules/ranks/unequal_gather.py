"""Gathering tensors of unequal shapes."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.prescan import spelled
from migrate.reading.tree.tree import code, nodes_of

GATHERS = frozenset({"torch.distributed.all_gather", "torch.distributed.gather"})


class UnequalGather(Hazard):
    """Replicas gather tensors of unequal shapes.

    **Why.** On XLA the shape is a part of the graph: replicas with other shapes run other graphs, and the
    collective hangs instead of raising.

    **What to do.** Pad to one length that is the same everywhere, end the graph there
    (`torch_xla.sync()`: the padding itself has another shape on each replica), gather that and the true
    length, and cut after the step.

    Source: pytorch/xla#8660.
    """

    code = "XLA303"
    name = "unequal-gather"
    severity = Severity.ERROR
    nodes = (cst.Call,)
    words = spelled(GATHERS)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def gather(x, sizes):
                out = [torch.empty(size) for size in sizes]
                dist.all_gather(out, x)  # XLA303


            def gather_found(x, out):
                dist.all_gather(out, x[x > 0].cuda())  # XLA303
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def gather(x):
                out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
                dist.all_gather(out, x)
                dist.all_gather([torch.zeros_like(x) for rank in range(8)], x)
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist
        import torch_xla


        def gather(x, count, world_size, most=128):
            padded = torch.zeros(most, device=x.device)
            padded[: x.shape[0]] = x
            torch_xla.sync()
            out = [torch.zeros_like(padded) for _ in range(world_size)]
            dist.all_gather(out, padded)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one gather whose parts differ."""
        assert isinstance(node, cst.Call)
        if facts.names.of(node.func) not in GATHERS or not node.args:
            return
        parts = node.args[0].value
        if isinstance(parts, cst.Name):
            _, bound = facts.context.bound_to(parts)
            parts = bound if isinstance(bound, cst.BaseExpression) else parts
        sent = node.args[1].value if len(node.args) > 1 else None
        message = "gathers tensors of unequal shapes: replicas with different graphs hang; pad them, and sync before the gather"
        if (isinstance(parts, cst.ListComp) and _varies(parts)) or (
            sent is not None
            and any(
                isinstance(index.slice, cst.Index) and isinstance(index.slice.value, cst.Comparison)
                for index in nodes_of(sent, cst.SubscriptElement)
            )
        ):
            yield self.hit(node, message)


def _varies(parts: cst.ListComp) -> bool:
    """Whether the elements that are made depend on the variable of the comprehension."""
    names = {name.value for name in nodes_of(parts.for_in.target, cst.Name)}
    return "range" not in code(parts.for_in.iter) and any(
        name.value in names for name in nodes_of(parts.elt, cst.Name)
    )
