"""A memory figure of `torch.cuda` that is 0 on XLA."""

from __future__ import annotations

import libcst as cst

from migrate.hazards.common import NamedHazard
from migrate.hazards.hazard import Severity, example


class CudaMemory(NamedHazard):
    """A memory figure of `torch.cuda` that is 0 on XLA.

    **Why.** Without CUDA these answer 0, or nothing, and do not raise: logs and limits that use them
    are wrong.

    **What to do.** `xm.get_memory_info()` on a TPU.

    Source: torch_xla 2.9, measured.
    """

    code = "XLA802"
    name = "cuda-memory"
    severity = Severity.WARNING
    spoken_by = ("cuda-memory",)
    nodes = (cst.Name, cst.Attribute)
    names = (
        ("torch.cuda.memory_allocated", "silently answers 0 on XLA: xm.get_memory_info()"),
        ("torch.cuda.max_memory_allocated", "silently answers 0 on XLA: xm.get_memory_info()"),
        ("torch.cuda.memory_reserved", "silently answers 0 on XLA: xm.get_memory_info()"),
        ("torch.cuda.max_memory_reserved", "silently answers 0 on XLA: xm.get_memory_info()"),
        ("torch.cuda.memory_cached", "silently answers 0 on XLA: xm.get_memory_info()"),
        ("torch.cuda.max_memory_cached", "silently answers 0 on XLA: xm.get_memory_info()"),
        ("torch.cuda.memory_stats", "silently answers 0 on XLA: xm.get_memory_info()"),
    )
    examples = (
        example(
            """
            import torch

            print(torch.cuda.max_memory_allocated() / 2**20)  # XLA802
            """
        ),
        example(
            """
            import torch_xla.core.xla_model as xm

            print(xm.get_memory_info())
            """
        ),
    )
