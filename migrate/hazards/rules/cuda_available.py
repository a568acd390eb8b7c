"""`torch.cuda.is_available()`."""

from __future__ import annotations

import libcst as cst

from migrate.hazards.common import NamedHazard
from migrate.hazards.hazard import Severity, example


class CudaAvailable(NamedHazard):
    """`torch.cuda.is_available()` is False on a TPU.

    **Why.** `"cuda" if torch.cuda.is_available() else "cpu"` trains on the CPU of the TPU host, without a
    word.

    **What to do.** `torch_xla.device()`; `migrate rewrite` does it.
    """

    code = "XLA704"
    name = "cuda-available"
    severity = Severity.WARNING
    spoken_by = ("cuda-available",)
    nodes = (cst.Name, cst.Attribute)
    names = (
        ("torch.cuda.is_available", "is False on a TPU: the script would train on the CPU"),
        ("torch.cuda.device_count", "is 0 on a TPU: torch_xla.runtime.world_size() in the worker"),
    )
    examples = (
        example(
            """
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"  # XLA704
            """
        ),
        example(
            """
            import torch

            device = "mps" if torch.backends.mps.is_available() else "cpu"
            """
        ),
    )
