"""numba.cuda is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example
from migrate.check.manual_work import ManualWork


class NumbaCuda(ImportHazard):
    """numba.cuda is imported.

    **Why.** Its kernels need CUDA. `numba.jit` for the host is not concerned.

    **What to do.** Operations of torch on the device, `numba.njit` on the host.
    """

    code = "XLA409"
    name = "numba-cuda"
    severity = Severity.ERROR
    targets = BOTH
    other_work = ManualWork.KERNELS
    examples = (
        example(
            """
            from numba import cuda  # XLA409
            """
        ),
        example(
            """
            import torch
            from numba import njit
            """
        ),
    )
    mended = example(
        """
        import torch


        def saxpy(a, x, y):
            return a * x + y
        """
    )
