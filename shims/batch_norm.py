"""Batch norm over the batches of all ranks, for devices that torch.nn.SyncBatchNorm refuses."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from shims import distributed
from shims._shared.batch_statistics import normalise


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
        spread = dist.is_initialized() and dist.get_world_size() > 1
        # Nobody reads the sums; run at once, each would cut the step that it is in.
        return normalise(self, input, distributed.pending_all_reduce if spread else None)


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
