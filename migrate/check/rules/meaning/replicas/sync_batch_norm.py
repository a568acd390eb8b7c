"""`torch.nn.SyncBatchNorm` raises on XLA."""

from __future__ import annotations

from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class SyncBatchNorm(NamedHazard):
    """`torch.nn.SyncBatchNorm` raises on XLA.

    **Why.** Once a process group exists its forward asks for a CUDA tensor.

    **What to do.** `torch_xla.core.functions.SyncBatchNorm`; or plain BatchNorm, where the batch of a
    replica is large.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA809"
    name = "sync-batch-norm"
    severity = Severity.ERROR
    examples = (
        example(
            """
            import torch


            def convert(model):
                return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)  # XLA809
            """
        ),
        example(
            """
            import torch


            def convert(model):
                kinds = (torch.nn.BatchNorm2d, torch.nn.SyncBatchNorm)
                return isinstance(model, kinds)
            """
        ),
    )
    mended = example(
        """
        from torch_xla.core.functions import SyncBatchNorm


        def make(channels):
            return SyncBatchNorm(channels)
        """
    )
