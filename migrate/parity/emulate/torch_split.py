"""float32 tensors of torch rounded to bfloat16."""

from __future__ import annotations

from typing import Any

import torch

_UPPER = -0x10000  # as int32: 0xFFFF0000
_LARGEST = torch.finfo(torch.bfloat16).max


class TorchSplit:
    """The roundings of `passes.Split` for torch, also for tensors of torch_xla.

    A tensor of torch_xla cannot be seen as integers inside of a graph: `view(torch.int32)` runs it. There
    truncation is computed: what was rounded away from zero goes one step back.
    """

    def nearest(self, array: Any) -> Any:
        """To the nearest, ties to even."""
        return array.to(torch.bfloat16).to(torch.float32)

    def truncated(self, array: Any) -> Any:
        """Towards zero."""
        if array.device.type != "xla":
            return (array.contiguous().view(torch.int32) & _UPPER).view(torch.float32)
        near = self.nearest(array)
        # Exact: 16 bits. Between half a step and a step below `near`, so the nearest is the one below.
        below = self.nearest(near - near * 2.0**-8)
        below = torch.where(torch.isinf(near), torch.sign(array) * _LARGEST, below)
        return torch.where(near.abs() > array.abs(), below, near)

    def rest(self, array: Any, part: Any) -> Any:
        """What the part leaves; 0 of what is not finite."""
        return (array - part).nan_to_num_(nan=0.0)

    def numbers(self, array: Any) -> Any:
        """0 where it is NaN."""
        # Not nan_to_num: torch_xla takes no infinity in it.
        return torch.where(torch.isnan(array), torch.zeros((), device=array.device), array)
