"""A Python number that differs between replicas, in a graph."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.kind import Kind


class RankInGraph(Hazard):
    """The index of the replica is computed with as a Python number.

    **Why.** A Python number is baked into the graph: every replica gets a graph of its own, compiles it
    for itself, and replicas with different graphs hang at collectives on a real TPU.

    **What to do.** Make it a tensor on the device, `torch.tensor(rank, device="xla")`; or compute with it in
    the data loader.
    """

    code = "XLA307"
    name = "rank-in-graph"
    severity = Severity.ERROR
    nodes = (cst.BinaryOperation,)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def noise(x):
                rank = dist.get_rank()
                return x.cuda() + rank  # XLA307
            """
        ),
        example(
            """
            import torch
            import torch.distributed as dist


            def seed(x, base):
                rank = dist.get_rank()
                torch.manual_seed(base + rank)
                return x.cuda() + 1, x[rank * 10 : rank * 10 + 10]
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist


        def noise(x):
            rank = torch.tensor(dist.get_rank(), device=x.device)
            return x.cuda() + rank
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one operation of a tensor and the index."""
        assert isinstance(node, cst.BinaryOperation)
        sides = (node.left, node.right)
        if not any(facts.values.on_device(side) for side in sides):
            return
        if any(facts.values.kind(side) is Kind.INDEX for side in sides):
            message = (
                "the replica's index as a Python number in a graph: each replica gets another graph"
            )
            yield self.hit(node, message)
