"""A library of CUDA kernels is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example
from migrate.check.manual_work import ManualWork


class CudaKernels(ImportHazard):
    """A library of CUDA kernels is imported.

    **Why.** xformers, transformer_engine, TensorRT, spconv, torch_scatter, k2 and others of the kind bring
    kernels for CUDA, and either do not import or do not run on tensors of XLA.

    **What to do.** The operations of torch that they speed up; XLA fuses them.
    """

    code = "XLA410"
    name = "cuda-kernels"
    severity = Severity.ERROR
    targets = BOTH
    other_work = ManualWork.KERNELS
    examples = (
        example(
            """
            import xformers.ops as xops  # XLA410
            import transformer_engine.pytorch as te  # XLA410
            import dgl  # XLA410
            import k2  # XLA410
            """
        ),
        example(
            """
            import transformers
            import torch
            """
        ),
    )
    mended = example(
        """
        import torch


        def attention(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)
        """
    )
