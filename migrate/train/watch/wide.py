"""A run of a script in float64: what float32 rounds away is not in its record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch

from migrate.parity.sides.torch.float64 import Float64Mode, in_float64


class WideRun:
    """Weights in float64 from the first loss on, and the statements of each loss in float64.

    Outside of these, what is computed with the weights is in float64 too (an evaluation), but batches are
    drawn as in any run: they stay the same numbers.
    """

    def __init__(self) -> None:
        self._inside = contextlib.ExitStack()
        self._widened = False

    def begin(self, modules: Iterable[torch.nn.Module]) -> None:
        """Compute in float64 from here on; the first time, widen the weights of the modules."""
        self.end()
        if not self._widened:
            self._widened = True
            for module in modules:
                module._apply(_wide)
            Float64Mode(creates=False).__enter__()  # until the process ends
            _without_sums()
        self._inside.enter_context(in_float64())

    def end(self) -> None:
        """Compute as between two losses."""
        self._inside.close()


def _without_sums() -> None:
    """Let DistributedDataParallel of one rank call its module: its sums keep their first dtype."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_world_size() > 1:
        return
    parallel = torch.nn.parallel.DistributedDataParallel
    setattr(parallel, "forward", lambda self, *args, **kwargs: self.module(*args, **kwargs))  # noqa: B010


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Tensor of float32 in float64. Others stay: to compute in 16 bits is what the script says."""
    return tensor.double() if tensor.dtype == torch.float32 else tensor
