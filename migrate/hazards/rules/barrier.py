"""`dist.barrier()`."""

from __future__ import annotations

import libcst as cst

from migrate.hazards.common import NamedHazard
from migrate.hazards.hazard import Severity, example


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

            threading.Barrier(2)
            barrier = threading.Barrier(2)
            barrier.wait()
            """
        ),
    )
