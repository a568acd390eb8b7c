"""A kernel of the hub is loaded when the script runs."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.catalogue.target import BOTH
from migrate.check.common import CudaHazard
from migrate.check.hazard import Hit, Severity, example
from migrate.check.manual_work import ManualWork
from migrate.reading.facts import Facts


class HubKernels(CudaHazard):
    """A kernel of the hub is loaded when the script runs.

    **Why.** `kernels.get_kernel("…")` downloads compiled CUDA code, and `kernelize` puts such code in place
    of a layer's forward. It does not take tensors of XLA.

    **What to do.** `torch.nn.functional.scaled_dot_product_attention` for attention, and the layer's own
    forward, which is of operations of torch, for the others: XLA fuses them.
    """

    code = "XLA412"
    name = "hub-kernels"
    words = "kernel"
    severity = Severity.ERROR
    targets = BOTH
    other_work = ManualWork.KERNELS
    examples = (
        example(
            """
            import kernels
            from kernels import get_kernel, use_kernel_forward_from_hub

            attention = get_kernel("some/flash-attention").flash_attn_func  # XLA412
            model = kernels.kernelize(model)  # XLA412


            @use_kernel_forward_from_hub("RMSNorm")  # XLA412
            class Norm:
                pass
            """
        ),
        example(
            """
            from kernels import rbf  # functions of a Gaussian process
            from pixels import get_kernel

            weights = get_kernel("gauss")
            """
        ),
    )
    mended = example(
        """
        import torch


        def attention(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        """
    )

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one use of a name, unless it comes from a file of the project that is called kernels."""
        name = facts.names.of(node)
        if name is not None and not facts.context.calls.is_local(name):
            yield from super().find(node, facts)
