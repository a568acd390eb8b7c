"""FSDP of torch raises on XLA."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example
from migrate.check.work import Work


class Fsdp(NamedHazard):
    """FSDP of torch raises on XLA.

    **Why.** It flattens parameters into storages and uses streams; XLA has neither.

    **What to do.** `torch_xla.distributed.fsdp.XlaFullyShardedDataParallel`; or
    `SpmdFullyShardedDataParallel` in one process, without the launcher.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA816"
    name = "fsdp"
    severity = Severity.ERROR
    other_work = Work.SHARDING
    examples = (
        example(
            """
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


            def wrap(model):
                return FSDP(model)  # XLA816
            """
        ),
        example(
            """
            from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP


            def wrap(model):
                return FSDP(model)
            """
        ),
    )
    mended = example(
        """
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP


        def wrap(model):
            return FSDP(model)
        """
    )
