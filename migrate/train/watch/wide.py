"""A run of a script in float64: what float32 rounds away is not in its record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch

from migrate.parity.sides.torch.float64 import in_float64


class WideRun:
    """Weights in float64 from the first loss on, and the statements of each loss in float64.

    Batches are drawn, and the optimizer is stepped, as in any run: what is drawn stays the same number.
    """

    def __init__(self) -> None:
        self._context = contextlib.ExitStack()
        self._widened = False

    def begin(self, modules: Iterable[torch.nn.Module]) -> None:
        """Compute in float64 from here on; the first time, widen the weights of the modules."""
        self.end()
        if not self._widened:
            self._widened = True
            for module in modules:
                module._apply(_wide)
        self._context.enter_context(in_float64())

    def end(self) -> None:
        """Compute as the script does again."""
        self._context.close()


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Tensor of float32 in float64. Others stay: to compute in 16 bits is what the script says."""
    return tensor.double() if tensor.dtype == torch.float32 else tensor
