"""SyncBatchNorm off the GPU: the statistics of all ranks, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from shims.patches.registry import Patch, patch


class _SumOverRanks(torch.autograd.Function):
    """The sum over the ranks of a group; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        total = value.detach().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def _forward(module: Any, value: torch.Tensor) -> torch.Tensor:
    """`nn.SyncBatchNorm.forward`, as one batch norm over the batches of all ranks."""
    module._check_input_dim(value)
    module._check_non_zero_input_channels(value)
    if module.training and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    by_batch = module.training or (module.running_mean is None and module.running_var is None)
    group = module.process_group
    spread = by_batch and module.training and dist.is_available() and dist.is_initialized()
    if not spread or dist.get_world_size(group) == 1:
        return functional.batch_norm(
            value,
            module.running_mean if not module.training or module.track_running_stats else None,
            module.running_var if not module.training or module.track_running_stats else None,
            module.weight,
            module.bias,
            by_batch,
            _momentum(module),
            module.eps,
        )
    # In float32 at least, as the kernels of a GPU do.
    exact = value if value.dtype in (torch.float32, torch.float64) else value.float()
    dims = [0, *range(2, exact.dim())]
    shape = [1, -1, *[1] * (exact.dim() - 2)]
    count = exact.new_full((1,), exact.numel() / exact.shape[1])
    sums = _SumOverRanks.apply(torch.cat([exact.sum(dims), count]), group)
    count = sums[-1].detach()
    mean = sums[:-1] / count
    # The mean first: the difference of two sums of squares would lose the digits that matter.
    centred = exact - mean.reshape(shape)
    variance = _SumOverRanks.apply((centred * centred).sum(dims), group) / count
    result = centred * torch.rsqrt(variance + module.eps).reshape(shape)
    if module.affine:
        result = result * module.weight.reshape(shape) + module.bias.reshape(shape)
    if module.track_running_stats and module.running_mean is not None:
        with torch.no_grad():
            momentum = _momentum(module)
            unbiased = variance * (count / (count - 1))
            for running, now in ((module.running_mean, mean), (module.running_var, unbiased)):
                running.mul_(1 - momentum).add_(now.to(running.dtype), alpha=momentum)
    return result.to(value.dtype)


def _momentum(module: Any) -> float:
    if module.momentum is not None:
        return float(module.momentum)
    # The cumulative average.
    return (
        1.0 / float(module.num_batches_tracked) if module.num_batches_tracked is not None else 0.0
    )


def patches() -> Iterator[Patch]:
    """`nn.SyncBatchNorm.forward`, which torch refuses without a GPU."""

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return _forward(self, input)

    yield patch(
        torch.nn.SyncBatchNorm, "forward", forward, "the statistics of all ranks, by all_reduce"
    )
    if hasattr(DistributedDataParallel, "_passing_sync_batchnorm_handle"):
        yield patch(
            DistributedDataParallel,
            "_passing_sync_batchnorm_handle",
            lambda self, module: None,
            "SyncBatchNorm is let in off the GPU",
        )
