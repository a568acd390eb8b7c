"""Stand-in for the package `kernels`: attention of FlashAttention's interface, computed by torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def get_kernel(repository: str) -> Any:
    """Return the kernels that training scripts ask for."""
    return SimpleNamespace(flash_attn_interface=SimpleNamespace(flash_attn_func=_attention))


def _attention(
    q: Any, k: Any, v: Any, causal: bool = False, window_size: tuple[int, int] = (-1, -1)
) -> Any:
    """Attention over rows of (batch, time, heads, size); a window limits how far a query looks."""
    import torch

    rows = torch.arange(q.shape[1], device=q.device)
    apart = rows[:, None] - rows[None, :]
    seen = torch.ones_like(apart, dtype=torch.bool)
    before, after = window_size
    if causal:
        seen = seen & (apart >= 0)
    if before >= 0:
        seen = seen & (apart <= before)
    if after >= 0:
        seen = seen & (-apart <= after)
    heads = (tensor.transpose(1, 2) for tensor in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=seen, enable_gqa=q.shape[2] != k.shape[2]
    )
    return attention.transpose(1, 2)
