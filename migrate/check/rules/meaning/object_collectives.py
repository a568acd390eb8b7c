"""Collectives of Python objects raise on XLA."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import keyword
from migrate.reading.values.collectives import makes_gloo_group


class ObjectCollectives(NamedHazard):
    """Collectives of Python objects raise on XLA.

    **Why.** Objects are sent as byte tensors whose length differs between replicas; the XLA backend
    refuses.

    **What to do.** A group of the CPU beside the main one: `dist.new_group(backend="gloo")`, passed as
    `group=`.

    Source: torch_xla 2.9, measured; pytorch/xla#5492.
    """

    code = "XLA811"
    name = "object-collectives"
    severity = Severity.ERROR
    spoken_by = ("object-collectives",)
    nodes = (cst.Name, cst.Attribute)
    names = (
        (
            "torch.distributed.all_gather_object",
            'raises on XLA: a gloo group beside, dist.new_group(backend="gloo")',
        ),
        (
            "torch.distributed.broadcast_object_list",
            'raises on XLA: a gloo group beside, dist.new_group(backend="gloo")',
        ),
        (
            "torch.distributed.gather_object",
            'raises on XLA: a gloo group beside, dist.new_group(backend="gloo")',
        ),
        (
            "torch.distributed.scatter_object_list",
            'raises on XLA: a gloo group beside, dist.new_group(backend="gloo")',
        ),
        (
            "torch.distributed.send_object_list",
            'raises on XLA: a gloo group beside, dist.new_group(backend="gloo")',
        ),
        (
            "torch.distributed.recv_object_list",
            'raises on XLA: a gloo group beside, dist.new_group(backend="gloo")',
        ),
    )
    examples = (
        example(
            """
            import torch.distributed as dist


            def collect(rows, out):
                dist.all_gather_object(out, rows)  # XLA811
            """
        ),
        example(
            """
            import torch.distributed as dist


            def collect(x, out):
                dist.all_gather(out, x)
                dist.all_gather_object(out, 3, group=dist.new_group(backend="gloo"))
            """
        ),
    )
    mended = example(
        """
        import torch.distributed as dist

        gloo = dist.new_group(backend="gloo")


        def collect(rows, out):
            dist.all_gather_object(out, rows, group=gloo)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one that has no group over gloo."""
        call = facts.context.parent(node)
        group = keyword(call, "group") if isinstance(call, cst.Call) else None
        if group is None or not makes_gloo_group(group.value, facts.context):
            yield from super().find(node, facts)
