"""A Python number that differs between replicas, in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.values.kind import Kind


class RankInGraph(Hazard):
    """The index of the replica is computed with as a Python number, or is a position in a tensor.

    **Why.** A Python number is baked into the graph: every replica gets a graph of its own, compiles it
    for itself, and replicas with different graphs hang at collectives on a real TPU.

    **What to do.** Make it a tensor on the device, with a dimension: `torch.tensor([rank], device="xla")`.
    Without one, 0 and 1 are constants of the graph, too. Or compute with it in the data loader. A table with
    one entry for each replica is made on the host, and then moved.

    Source: torch_xla 2.9 (measured: `table[i] = 1.0` compiles for each `i`).
    """

    code = "XLA307"
    name = "rank-in-graph"
    severity = Severity.ERROR
    nodes = (cst.BinaryOperation, cst.Subscript)
    examples = (
        example(
            """
            import torch
            import torch.distributed as dist


            def noise(x):
                rank = dist.get_rank()
                return x.cuda() + rank  # XLA307


            def gathered(value):
                table = torch.zeros(dist.get_world_size(), device="cuda")
                table[dist.get_rank()] = value  # XLA307
                dist.all_reduce(table)
                rank = dist.get_rank()
                part = table[rank * 2 : rank * 2 + 2]  # XLA307
                return table, part
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


            def gathered(value, names):
                table = torch.zeros(dist.get_world_size())
                table[dist.get_rank()] = value
                table = table.to("cuda")
                dist.all_reduce(table)
                return table[0], names[dist.get_rank()]


            def low_rank(x, rank):
                u, s, v = torch.linalg.svd(x.cuda())
                weights = x.cuda()
                return u[:, :rank], weights[:rank]
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch.distributed as dist


        def noise(x):
            rank = torch.tensor([dist.get_rank()], device=x.device)
            return x.cuda() + rank
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one operation of a tensor and the index, or one position that is the index."""
        if isinstance(node, cst.Subscript):
            at = [part for element in node.slice for part in _positions(element.slice)]
            if facts.values.on_device(node.value) and any(_is_index(p, facts) for p in at):
                message = (
                    "the replica's index as a position in a tensor of the device: each replica gets "
                    "another graph"
                )
                yield self.hit(node, message)
            return
        assert isinstance(node, cst.BinaryOperation)
        sides = (node.left, node.right)
        if not any(facts.values.on_device(side) for side in sides):
            return
        if any(facts.values.kind(side) is Kind.INDEX for side in sides):
            message = (
                "the replica's index as a Python number in a graph: each replica gets another graph"
            )
            yield self.hit(node, message)


def _positions(part: cst.BaseSlice) -> Iterator[cst.BaseExpression]:
    if isinstance(part, cst.Index):
        yield part.value
    elif isinstance(part, cst.Slice):
        yield from (bound for bound in (part.lower, part.upper) if bound is not None)


def _is_index(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is the index of the replica, or a number that is computed from it."""
    if isinstance(node, cst.BinaryOperation):
        return _is_index(node.left, facts) or _is_index(node.right, facts)
    if isinstance(node, cst.Call):
        return facts.guards.is_index(node)
    # Not by its name alone: the rank of a matrix bounds its slices.
    return facts.context.ranks.is_rank(node)
