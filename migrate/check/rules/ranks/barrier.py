"""`dist.barrier()`."""

from __future__ import annotations

from migrate.check.common import GroupHazard
from migrate.check.hazard import Severity, example


class Barrier(GroupHazard):
    """`dist.barrier()` does nothing on XLA.

    **Why.** The XLA backend's barrier returns at once, without a word: what stands after it may run before
    the other replicas are there, such as reading a file that the first is still writing.

    **What to do.** `xm.rendezvous("tag")`, in every replica.

    Source: torch_xla 2.9, `distributed/xla_backend.py`.
    """

    code = "XLA306"
    name = "barrier"
    severity = Severity.WARNING
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
