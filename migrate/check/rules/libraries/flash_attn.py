"""flash-attn is imported."""

from __future__ import annotations

from migrate.catalogue.target import BOTH
from migrate.check.common import ImportHazard
from migrate.check.hazard import Severity, example


class FlashAttention(ImportHazard):
    """flash-attn is imported.

    **Why.** Its kernels are CUDA.

    **What to do.** `torch.nn.functional.scaled_dot_product_attention`, or `flash_attention` of
    `torch_xla.experimental.custom_kernel` on a TPU.
    """

    code = "XLA403"
    name = "flash-attn"
    severity = Severity.ERROR
    targets = BOTH
    examples = (
        example(
            """
            from flash_attn import flash_attn_func  # XLA403
            """
        ),
        example(
            """
            from torch.nn.functional import scaled_dot_product_attention
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
