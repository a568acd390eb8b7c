"""Choices of a model among equal values: torch leaves undefined which it takes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.recording.detours import place

CHOICE = "a choice among equal values"
# Multiple of float32's rounding up to which two values count as equal.
_ROUNDINGS = 4


class Ties(TorchDispatchMode):
    """Records the lines of `topk` whose largest values are equal up to rounding.

    Attributes:
        lines: "file.py:12", in the order of the calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.topk.default and _tied(*args):
            file, line = place()
            self.lines.setdefault(f"{file.rpartition('/')[2]}:{line}")
        return result

    def notes(self) -> list[str]:
        """Notes on a port of this model."""
        return [
            f"{CHOICE}: topk at {line} is given some; torch does not define which it takes first, "
            "and the port takes the first of them"
            for line in self.lines
        ]


def _tied(x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any) -> bool:
    """Whether two of the largest k + 1 values are equal. Infinite values are masked and do not
    count.
    """
    if not x.is_floating_point() or x.numel() == 0 or x.dim() == 0:
        return False
    count = min(k + 1, x.shape[dim])
    first = torch.sort(x, dim=dim, descending=largest).values.narrow(dim, 0, count)
    apart = first.diff(dim=dim).abs()
    limit = _ROUNDINGS * torch.finfo(torch.float32).eps * first.abs().narrow(dim, 0, count - 1)
    return bool((torch.isfinite(apart) & (apart <= limit)).any())
