"""Rounding of torch float32 tensors to bfloat16."""

from __future__ import annotations

from typing import Any

import torch

_UPPER = -0x10000  # as int32: 0xFFFF0000
_LARGEST = torch.finfo(torch.bfloat16).max


class TorchSplit:
    """Roundings of `passes.Split` for torch, also for tensors of torch_xla.

    A tensor of torch_xla cannot be viewed as integers inside a graph: `view(torch.int32)` executes the
    graph. There truncation is computed: numbers that were rounded away from zero move back by one step.
    """

    def nearest(self, array: Any) -> Any:
        """Round to nearest, ties to even."""
        return array.to(torch.bfloat16).to(torch.float32)

    def truncated(self, array: Any) -> Any:
        """Round toward zero."""
        if array.device.type != "xla":
            return (array.contiguous().view(torch.int32) & _UPPER).view(torch.float32)
        near = self.nearest(array)
        # Exact in 16 bits: between half a step and a step below `near`, so the nearest number is the one
        # below.
        below = self.nearest(near - near * 2.0**-8)
        below = torch.where(torch.isinf(near), torch.sign(array) * _LARGEST, below)
        return torch.where(near.abs() > array.abs(), below, near)

    def rest(self, array: Any, part: Any) -> Any:
        """Remainder without the part; 0 where the array is not finite."""
        return (array - part).nan_to_num_(nan=0.0)

    def numbers(self, array: Any) -> Any:
        """Replace NaN by 0."""
        # Not nan_to_num: torch_xla accepts no infinity in it.
        return torch.where(torch.isnan(array), torch.zeros((), device=array.device), array)
