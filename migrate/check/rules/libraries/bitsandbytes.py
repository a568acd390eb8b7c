"""bitsandbytes is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class BitsAndBytes(ImportHazard):
    """bitsandbytes is imported.

    **Why.** Its 8-bit optimizers and layers are CUDA kernels. The package imports without CUDA, and its
    optimizers raise at their first step for tensors on XLA: "Found a custom (non-ATen) operator". An
    `except ImportError` around the import runs only where the package is not installed: a warning.

    **What to do.** Optimizers of `torch.optim`. Where memory is short, shard the optimizer's state (FSDP).

    Source: bitsandbytes 0.50.2 with torch_xla 2.9 (measured).
    """

    code = "XLA405"
    name = "bitsandbytes"
    severity = Severity.ERROR
    targets = BOTH
    works_on_host = True
    examples = (
        example(
            """
            import bitsandbytes as bnb  # XLA405
            """
        ),
        example(
            """
            import torch


            def make(weights, small):
                if small:
                    try:
                        import bitsandbytes as bnb  # XLA405 warning

                        return bnb.optim.AdamW8bit(weights)
                    except ImportError:
                        print("not installed")
                return torch.optim.AdamW(weights)
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
