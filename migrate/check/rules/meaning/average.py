"""A reduction that the XLA backend does not have."""

from __future__ import annotations

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class Average(NamedHazard):
    """A reduction that the XLA backend does not have.

    **Why.** The XLA backend knows SUM, PRODUCT, MIN and MAX.

    **What to do.** SUM, then divide by the world size.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA810"
    name = "reduce-average"
    severity = Severity.ERROR
    spoken_by = ("average", "reduce-op")
    nodes = (cst.Name, cst.Attribute)
    names = (
        ("torch.distributed.ReduceOp.AVG", "raises on XLA: SUM, then divide by the world size"),
        ("torch.distributed.ReduceOp.PREMUL_SUM", "raises on XLA: multiply, then SUM"),
        ("torch.distributed.reduce_op.", "is gone from torch: torch.distributed.ReduceOp"),
    )
    examples = (
        example(
            """
            import torch.distributed as dist


            def mean(x):
                dist.all_reduce(x, op=dist.ReduceOp.AVG)  # XLA810
            """
        ),
        example(
            """
            import torch.distributed as dist


            def mean(x):
                dist.all_reduce(x, op=dist.ReduceOp.SUM)
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
