"""What is measured while training, with timm's interface."""

from __future__ import annotations

from typing import Any

import torch


class AverageMeter:
    """The last value and the average of all."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self.val: Any = 0
        self.sum: Any = 0
        self.count = 0
        self.avg: Any = 0

    def update(self, val: Any, n: int = 1) -> None:
        """Add a value that counts `n` times."""
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(
    output: torch.Tensor, target: torch.Tensor, topk: tuple[int, ...] = (1,)
) -> list[torch.Tensor]:
    """Return the share of right answers among the first k, in percent, for each k."""
    best = output.topk(min(max(topk), output.size(1)), dim=1).indices.t()
    right = best.eq(target.reshape(1, -1).expand_as(best))
    return [right[: min(k, output.size(1))].float().sum() * 100.0 / target.size(0) for k in topk]
