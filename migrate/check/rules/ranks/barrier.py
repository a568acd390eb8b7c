"""`dist.barrier()`."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.reading.facts import Facts
from migrate.reading.tree.tree import keyword
from migrate.reading.values.collectives import makes_gloo_group


class Barrier(NamedHazard):
    """`dist.barrier()` does nothing on XLA.

    **Why.** The XLA backend's barrier returns at once, without a word: what stands after it may run before
    the other replicas are there, such as reading a file that the first is still writing.

    **What to do.** `xm.rendezvous("tag")`, in every replica.

    Source: torch_xla 2.9, `distributed/xla_backend.py`.
    """

    code = "XLA306"
    name = "barrier"
    severity = Severity.WARNING
    spoken_by = ("barrier",)
    nodes = (cst.Name, cst.Attribute)
    names = (
        ("torch.distributed.barrier", "does nothing on XLA: xm.rendezvous(tag)"),
        ("torch.distributed.monitored_barrier", "raises on XLA: xm.rendezvous(tag)"),
    )
    examples = (
        example(
            """
            import torch.distributed as dist

            dist.barrier()  # XLA306
            """
        ),
        example(
            """
            import threading

            import torch.distributed as dist

            threading.Barrier(2)
            barrier = threading.Barrier(2)
            barrier.wait()
            dist.barrier(group=dist.new_group(backend="gloo"))
            """
        ),
    )
    mended = example(
        """
        import torch_xla.core.xla_model as xm

        xm.rendezvous("ready")
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one barrier that is not one of a group over gloo, which waits."""
        call = facts.context.parent(node)
        group = keyword(call, "group") if isinstance(call, cst.Call) else None
        if group is None or not makes_gloo_group(group.value, facts.context):
            yield from super().find(node, facts)
