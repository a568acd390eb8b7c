"""CuPy, RAPIDS or PyCUDA is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class CuPy(ImportHazard):
    """CuPy, RAPIDS or PyCUDA is imported.

    **Why.** They need CUDA.

    **What to do.** numpy and pandas on the host; operations of torch on the device.
    """

    code = "XLA408"
    name = "cupy"
    severity = Severity.ERROR
    targets = BOTH
    examples = (
        example(
            """
            import cupy as cp  # XLA408
            """
        ),
        example(
            """
            import numpy as cp
            """
        ),
    )
    mended = example(
        """
        import torch

        rows = torch.arange(10, device="xla")
        """
    )
