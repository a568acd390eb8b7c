"""bitsandbytes is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class BitsAndBytes(ImportHazard):
    """bitsandbytes is imported.

    **Why.** Its 8-bit optimizers and layers are CUDA kernels.

    **What to do.** Optimizers of `torch.optim`. Where memory is short, shard the optimizer's state (FSDP).
    """

    code = "XLA405"
    name = "bitsandbytes"
    severity = Severity.ERROR
    targets = BOTH
    examples = (
        example(
            """
            import bitsandbytes as bnb  # XLA405
            """
        ),
        example(
            """
            import torch.optim as bnb
            """
        ),
    )
    mended = example(
        """
        import torch


        def make(model):
            return torch.optim.AdamW(model.to(torch.bfloat16).parameters())
        """
    )
