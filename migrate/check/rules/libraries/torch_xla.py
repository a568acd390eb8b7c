"""torch_xla beside torch_tpu."""

from __future__ import annotations

from migrate.catalogue.target import TPU_ONLY
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class TorchXla(ImportHazard):
    """torch_xla is imported.

    **Why.** torch_xla 2.9 needs torch 2.9, torch_tpu needs torch 2.11 or later: one environment cannot hold
    both. Nothing of torch_xla drives the device of torch_tpu.

    **What to do.** Remove what is of torch_xla: torch_tpu has no step and no sync, and ranks, saves and
    collectives are torch's own. Or check the script with `--target torch_xla`.
    """

    code = "XLA894"
    name = "torch-xla"
    severity = Severity.ERROR
    targets = TPU_ONLY
    words = "torch_xla"
    examples = (
        example(
            """
            import torch
            import torch_xla  # XLA894
            import torch_xla.core.xla_model as xm  # XLA894
            """
        ),
        example(
            """
            import torch
            import torch_tpu
            """
        ),
    )
    mended = example(
        """
        import torch
        import torch_tpu
        """
    )
