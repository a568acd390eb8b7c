"""flex_attention is used."""

from __future__ import annotations

from migrate.check.common import CudaHazard
from migrate.check.hazard import Severity, example


class FlexAttention(CudaHazard):
    """flex_attention is used.

    **Why.** `torch.nn.attention.flex_attention.flex_attention` looks at the device of its inputs and raises a
    ValueError for XLA, whether `torch.compile` is around it or not. `create_block_mask` makes its mask on
    CUDA where no device is named, and with `device="xla"` it raises too.

    **What to do.** `torch.nn.functional.scaled_dot_product_attention`: `is_causal=True`, or the mask as a
    tensor of bools. It has the whole matrix of scores in memory; for long sequences `flash_attention` of
    `torch_xla.experimental.custom_kernel` on a TPU.

    Source: torch 2.9, torch_xla 2.9, measured.
    """

    code = "XLA413"
    name = "flex-attention"
    severity = Severity.ERROR
    examples = (
        example(
            """
            import torch
            from torch.nn.attention import flex_attention as flex
            from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

            attend = torch.compile(flex_attention, dynamic=False)  # XLA413


            def block(q, k, v, mask: BlockMask):
                return flex.flex_attention(q, k, v, block_mask=mask)  # XLA413


            def mask(causal, n):
                return create_block_mask(causal, None, None, n, n)  # XLA413
            """
        ),
        example(
            """
            import torch
            from attention import flex_attention


            def block(q, k, v):
                return flex_attention(q, k, v)
            """
        ),
    )
    mended = example(
        """
        import torch


        def block(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        """
    )
