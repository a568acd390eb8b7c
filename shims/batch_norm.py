"""Batch norm over the batches of all ranks, for devices that torch.nn.SyncBatchNorm refuses."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from shims import distributed


class SyncBatchNorm(_BatchNorm):
    """Normalise over all ranks' batches, with the keys, values and gradients of torch's SyncBatchNorm.

    Ranks may have batches of different sizes. In evaluation, and in a group of one, it is BatchNorm.

    Args:
        num_features: channels, the second dimension of the input (N, C, …).
        eps: added to the variance.
        momentum: of the running statistics; None for a cumulative average.
        affine: whether there are a weight and a bias.
        track_running_stats: whether there are running statistics.
    """

    def _check_input_dim(self, value: torch.Tensor) -> None:
        if value.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, not {value.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalise (N, C, …)."""
        self._check_input_dim(input)
        with_batch = self.training or not self.track_running_stats
        if not with_batch or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(input)
        channels = [1, -1] + [1] * (input.dim() - 2)
        others = [dim for dim in range(input.dim()) if dim != 1]
        # As torch: statistics of half-precision batches in float32.
        value = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        rows = torch.full((1,), value.numel() // value.shape[1]).to(value)
        totals = _sum_over_ranks(torch.cat([value.sum(others), rows]))
        count = totals[-1]
        mean = totals[:-1] / count
        centred = value - mean.reshape(channels)
        # In two passes: the mean of squares less the squared mean cancels.
        variance = _sum_over_ranks((centred * centred).sum(others)) / count
        if self.training and self.track_running_stats:
            self._update(mean.detach(), variance.detach(), count.detach())
        out = centred * torch.rsqrt(variance + self.eps).reshape(channels)
        if self.affine:
            out = out * self.weight.reshape(channels) + self.bias.reshape(channels)
        return out.to(input.dtype)

    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        share: Any = self.momentum
        if share is None:
            share = 1.0 / self.num_batches_tracked.to(mean.dtype)
        unbiased = variance * (count / (count - 1))
        self.running_mean.mul_(1 - share).add_(share * mean.to(self.running_mean.dtype))
        self.running_var.mul_(1 - share).add_(share * unbiased.to(self.running_var.dtype))


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        # Each rank's value is in every rank's total.
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        return total


def _sum_over_ranks(value: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = _SumOverRanks.apply(value)
    return total


def convert(model: torch.nn.Module) -> torch.nn.Module:
    """Replace every batch norm in a model, weights and statistics kept.

    Returns:
        The model; another module if it is itself a batch norm.
    """
    replacement = model
    if isinstance(model, _BatchNorm) and not isinstance(model, SyncBatchNorm):
        replacement = SyncBatchNorm(
            model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats
        )
        # The tensors themselves: an optimizer or a tie keeps them.
        replacement._parameters = model._parameters
        replacement._buffers = model._buffers
        replacement.training = model.training
    for name, child in model.named_children():
        replacement.add_module(name, convert(child))
    return replacement
