"""Broadcasts on XLA that preserve infinities and NaNs."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist


def install() -> None:
    """Make torch_xla's groups clear the receivers' tensors before a broadcast.

    torch_xla multiplies them by 0 and sums, so a receiver's NaN or infinity would reach every
    replica as NaN. DDP broadcasts parameters and buffers the same way, including masks of -inf.
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
    """Write zeros into `tensor` on all replicas except `root`."""
    import torch_xla.runtime as xr

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    # A device value, not a constant: all replicas must have the same graph.
    here = torch.tensor([xr.global_ordinal() == root]).to(tensor.device)
    with torch.no_grad():
        values = torch.where(here, tensor, torch.zeros_like(tensor))
        tensor.copy_(values.reshape(tensor.shape))
