"""Triton is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example
from migrate.check.manual_work import ManualWork


class Triton(ImportHazard):
    """Triton is imported.

    **Why.** Triton compiles for GPUs only.

    **What to do.** Use the operations of torch that the kernel replaces; XLA fuses them. What needs a
    kernel becomes one in Pallas.
    """

    code = "XLA402"
    name = "triton"
    severity = Severity.ERROR
    targets = BOTH
    other_work = ManualWork.KERNELS
    examples = (
        example(
            """
            import triton.language as tl  # XLA402
            from triton import jit  # XLA402
            """
        ),
        example(
            """
            import torch

            triton = torch.ones(3)
            """
        ),
    )
    mended = example(
        """
        import torch


        def softmax(x):  # XLA fuses it
            return (x - x.amax(-1, keepdim=True)).exp() / x.exp().sum(-1, keepdim=True)
        """
    )
