"""A reduction that the XLA backend does not have."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class Average(NamedHazard):
    """A reduction that the XLA backend does not have.

    **Why.** The XLA backend knows SUM, PRODUCT, MIN, MAX, BAND and BOR.

    **What to do.** SUM, then divide by the world size.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA810"
    name = "reduce-average"
    severity = Severity.ERROR
    examples = (
        example(
            """
            import torch.distributed as dist


            def mean(x):
                dist.all_reduce(x, op=dist.ReduceOp.AVG)  # XLA810


            def parity(x):
                dist.all_reduce(x, op=dist.ReduceOp.BXOR)  # XLA810
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
