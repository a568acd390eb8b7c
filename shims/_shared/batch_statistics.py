"""Batch norm over the batches of all ranks: the arithmetic of torch's SyncBatchNorm on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

# Replaces a tensor with its sum over the ranks.
Sum = Callable[[torch.Tensor], object]


def normalize(module: Any, value: torch.Tensor, sum_over_ranks: Sum | None) -> torch.Tensor:
    """Return the output of a batch norm that normalizes over the batches of all ranks.

    The ranks may have batches of different sizes. Like torch's SyncBatchNorm, only training uses
    other ranks' batches, and statistics of half-precision batches are in float32.

    Args:
        module: a torch batch norm: its weights, buffers and flags are read, its buffers updated.
        value: (N, C, …).
        sum_over_ranks: None in a group of one rank, which makes this plain BatchNorm.
    """
    if module.training and module.track_running_stats and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    if not module.training or sum_over_ranks is None:
        return _plain(module, value)
    exact = value if value.dtype in (torch.float32, torch.float64) else value.float()
    dims = [0, *range(2, exact.dim())]
    channels = [1, -1, *[1] * (exact.dim() - 2)]
    rows = torch.full((1,), exact.numel() // exact.shape[1]).to(exact)
    totals = _total(torch.cat([exact.sum(dims), rows]), sum_over_ranks)
    count = totals[-1].detach()
    mean = totals[:-1] / count
    # Mean first: the difference of two sums of squares would lose the significant digits.
    centered = exact - mean.reshape(channels)
    variance = _total((centered * centered).sum(dims), sum_over_ranks) / count
    if module.track_running_stats and module.running_mean is not None:
        _update(module, mean.detach(), variance.detach(), count)
    result = centered * torch.rsqrt(variance + module.eps).reshape(channels)
    if module.affine:
        result = result * module.weight.reshape(channels) + module.bias.reshape(channels)
    return result.to(value.dtype)


def _plain(module: Any, value: torch.Tensor) -> torch.Tensor:
    by_batch = module.training or module.running_mean is None
    keeps = not module.training or module.track_running_stats
    momentum = module.momentum
    if momentum is None:  # the cumulative average
        tracked = module.num_batches_tracked
        momentum = 1.0 / float(tracked) if by_batch and tracked is not None else 0.0
    return functional.batch_norm(
        value,
        module.running_mean if keeps else None,
        module.running_var if keeps else None,
        module.weight,
        module.bias,
        by_batch,
        float(momentum),
        module.eps,
    )


def _update(module: Any, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
    # The count is a tensor: reading it would cut the graph on XLA.
    share: Any = module.momentum
    if share is None:
        share = 1.0 / module.num_batches_tracked.to(mean.dtype)
    unbiased = variance * (count / (count - 1))
    for running, now in ((module.running_mean, mean), (module.running_var, unbiased)):
        running.mul_(1 - share).add_(share * now.to(running.dtype))


class _Total(torch.autograd.Function):
    """Sum over the ranks. The gradient is summed too, because each rank's value is in every rank's total."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, sum_over_ranks: Sum) -> torch.Tensor:
        ctx.sum_over_ranks = sum_over_ranks
        total = value.detach().clone()
        sum_over_ranks(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].contiguous().clone()
        ctx.sum_over_ranks(total)
        return total, None


def _total(value: torch.Tensor, sum_over_ranks: Sum) -> torch.Tensor:
    total: torch.Tensor = _Total.apply(value, sum_over_ranks)
    return total
