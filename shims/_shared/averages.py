"""Average over ranks, from the sum that a backend without averages computes."""

from __future__ import annotations

import torch


def divide(total: torch.Tensor, ranks: int) -> None:
    """Divide a sum over ranks in place by their number. Like NCCL: integers are divided towards zero."""
    exact = total.is_floating_point() or total.is_complex()
    with torch.no_grad():
        total.div_(ranks, rounding_mode=None if exact else "trunc")
