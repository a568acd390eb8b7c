"""Reductions of 64-bit tensors on XLA, where the TPU's compiler lowers only sums.

"Supports lowering only of Sum all-reduce" (libtpu 0.0.42, int64 and float64). The values of all
ranks are gathered instead, which the compiler does lower, and reduced on each rank.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist

_FOLDS = {
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
}


class CompletedWork:
    """Handle of a collective that has already completed."""

    def wait(self, timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True


def is_wide(tensor: Any, op: Any) -> bool:
    """Whether XLA must gather the tensor instead of reducing it."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        return False
    return tensor.dtype in (torch.int64, torch.float64) and any(op == known for known in _FOLDS)


def all_reduce(tensor: torch.Tensor, op: Any, group: Any) -> None:
    """Reduce a tensor over the ranks, in place on each rank."""
    fold = next(fold for known, fold in _FOLDS.items() if op == known)
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group)
    with torch.no_grad():
        tensor.copy_(functools.reduce(fold, parts))
