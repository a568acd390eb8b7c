"""Broadcasts over XLA that keep infinities and NaNs."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist


def install() -> None:
    """Have the groups of torch_xla clear what the receivers hold before a broadcast.

    torch_xla multiplies it by 0 and sums: a NaN or an infinity of a receiver would reach every replica as
    NaN. DDP broadcasts parameters and buffers through the same method, as a mask of -inf.
    """
    from torch_xla.distributed.xla_backend import ProcessGroupXla

    broadcast = ProcessGroupXla.broadcast
    if hasattr(broadcast, "__wrapped__"):
        return

    @functools.wraps(broadcast)
    def cleared(self: Any, tensors: list[torch.Tensor], opts: Any) -> Any:
        root = dist.get_global_rank(self, opts.rootRank)
        _clear(tensors[opts.rootTensor], root)
        return broadcast(self, tensors, opts)

    ProcessGroupXla.broadcast = cleared


def _clear(tensor: torch.Tensor, root: int) -> None:
    """Write zeros into `tensor`, on all replicas but `root`."""
    import torch_xla.runtime as xr

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    # A value of the device, not a constant: the graphs of all replicas must be the same.
    here = torch.tensor([xr.global_ordinal() == root]).to(tensor.device)
    with torch.no_grad():
        values = torch.where(here, tensor, torch.zeros_like(tensor))
        tensor.copy_(values.reshape(tensor.shape))
