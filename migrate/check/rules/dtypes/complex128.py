"""complex128."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import NamedHazard
from migrate.check.hazard import Severity, example


class Complex128(NamedHazard):
    """complex128 does not run on a TPU.

    **Why.** Its halves are float64, which a TPU emulates, and many operations on it fall back to the CPU.

    **What to do.** `torch.complex64`, or two real tensors.
    """

    code = "XLA503"
    name = "complex128"
    severity = Severity.WARNING
    targets = BOTH
    examples = (
        example(
            """
            import torch

            spectrum = torch.zeros(8, dtype=torch.complex128)  # XLA503
            """
        ),
        example(
            """
            import numpy as np
            import torch

            spectrum = np.zeros(8, dtype=np.complex128), torch.zeros(8, dtype=torch.complex64)
            """
        ),
    )
    mended = example(
        """
        import torch

        spectrum = torch.zeros(8, dtype=torch.complex64)
        """
    )
