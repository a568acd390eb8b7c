"""A memory figure of `torch.cuda` that is 0 on XLA."""

from __future__ import annotations

from migrate.check.common import CudaHazard
from migrate.check.hazard import Severity, example


class CudaMemory(CudaHazard):
    """A memory figure of `torch.cuda` that is 0 on XLA.

    **Why.** Without CUDA these answer 0, or nothing, and do not raise: logs and limits that use them
    are wrong.

    **What to do.** `xm.get_memory_info()` on a TPU.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA802"
    name = "cuda-memory"
    severity = Severity.WARNING
    examples = (
        example(
            """
            import torch

            print(torch.cuda.max_memory_allocated() / 2**20)  # XLA802
            print(len(torch.cuda.memory_snapshot()))  # XLA802
            """
        ),
        example(
            """
            import torch_xla.core.xla_model as xm

            print(xm.get_memory_info())
            """
        ),
    )
    mended = example(
        """
        import torch_xla.core.xla_model as xm

        print(xm.get_memory_info("xla"))
        """
    )
