"""SyncBatchNorm without a GPU: the statistics of all ranks, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shims._shared.batch_statistics import normalize
from shims.patches.registry import Patch, patch


def _forward(module: Any, value: torch.Tensor) -> torch.Tensor:
    module._check_input_dim(value)
    module._check_non_zero_input_channels(value)
    group = module.process_group
    spread = dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
    total = functools.partial(dist.all_reduce, group=group)
    return normalize(module, value, total if spread else None)


def patches() -> Iterator[Patch]:
    """Yield the patch of `nn.SyncBatchNorm.forward`, which torch refuses without a GPU."""

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
