"""Reductions of 64-bit tensors on XLA, which the TPU's compiler lowers for sums only.

"Supports lowering only of Sum all-reduce" (libtpu 0.0.42, int64 and float64): the values of all ranks are
gathered instead, which it does lower, and reduced in each.
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


class Done:
    """A collective that has ended."""

    def wait(self, timeout: Any = None) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True


def is_wide(tensor: Any, op: Any) -> bool:
    """Whether this reduction of this tensor on XLA is one of those."""
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        return False
    return tensor.dtype in (torch.int64, torch.float64) and any(op == known for known in _FOLDS)


def all_reduce(tensor: torch.Tensor, op: Any, group: Any) -> None:
    """Reduce a tensor over the ranks, in place in each."""
    fold = next(fold for known, fold in _FOLDS.items() if op == known)
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group)
    with torch.no_grad():
        tensor.copy_(functools.reduce(fold, parts))
