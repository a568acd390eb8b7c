"""A memory figure of `torch.cuda` that is 0 on XLA."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import libcst as cst

from migrate.check.common import NamedHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import Facts


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
    mended = example(
        """
        import torch_xla.core.xla_model as xm

        print(xm.get_memory_info("xla"))
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use; information where only a run on CUDA comes to it."""
        for hit in super().find(node, facts):
            never = only_with_cuda(node, facts)
            yield replace(hit, severity=Severity.INFO) if never else hit
