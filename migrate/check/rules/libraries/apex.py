"""apex is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class Apex(ImportHazard):
    """apex is imported.

    **Why.** apex is built against CUDA.

    **What to do.** `torch.autocast('xla', dtype=torch.bfloat16)` for amp,
    `torch.nn.parallel.DistributedDataParallel`, the optimizers of `torch.optim` and
    `torch.nn.LayerNorm`.
    """

    code = "XLA404"
    name = "apex"
    severity = Severity.ERROR
    targets = BOTH
    examples = (
        example(
            """
            from apex import amp  # XLA404
            from apex.parallel import DistributedDataParallel  # XLA404

            try:
                import apex  # XLA404 info
            except ImportError:
                apex = None
            """
        ),
        example(
            """
            from climbing import apex
            from .apex import amp
            """
        ),
    )
    mended = example(
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel


        def step(model, x):
            with torch.autocast("xla", dtype=torch.bfloat16):
                return DistributedDataParallel(model)(x)
        """
    )
