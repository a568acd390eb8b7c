"""Batch norm over the batches of all ranks, where torch.nn.SyncBatchNorm does not run, and on torch_tpu."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from shims import distributed
from shims._shared.batch_statistics import normalize
from shims._shared.running_statistics import following


class SyncBatchNorm(_BatchNorm):
    """Batch norm over all ranks' batches, with the keys, values and gradients of torch's SyncBatchNorm.

    Ranks may have batches of different sizes. In evaluation, and in a group of one, this is
    BatchNorm.

    Args:
        num_features: channels, the second dimension of the input (N, C, …).
        eps: added to the variance.
        momentum: the momentum of the running statistics; None for a cumulative average.
        affine: whether the layer has a weight and a bias.
        track_running_stats: whether the layer has running statistics.
    """

    def _check_input_dim(self, value: torch.Tensor) -> None:
        if value.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, not {value.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalize a value of shape (N, C, …)."""
        self._check_input_dim(input)
        spread = dist.is_initialized() and dist.get_world_size() > 1
        # The sums are only used in the model: running each at once would cut the step's graph.
        return normalize(self, input, distributed.pending_all_reduce if spread else None)


def convert(model: torch.nn.Module) -> torch.nn.Module:
    """Replace every batch norm in a model, keeping weights and statistics.

    Returns:
        The model, or a new module if the model itself is a batch norm.
    """
    replacement = model
    if isinstance(model, _BatchNorm) and not isinstance(model, SyncBatchNorm):
        replacement = SyncBatchNorm(
            model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats
        )
        # The same tensor objects: an optimizer or a tie refers to them.
        replacement._parameters = model._parameters
        replacement._buffers = model._buffers
        replacement.training = model.training
    for name, child in model.named_children():
        replacement.add_module(name, convert(child))
    return replacement


_updates: list[object] = []


def update_running_statistics() -> None:
    """Let all batch norms of this process update their running statistics on a TPU of torch_tpu.

    torch_tpu 0.2.0 leaves `running_mean` and `running_var` at 0 and 1, with no error, so that `eval()` is
    wrong. A torch_tpu that updates them is left alone, and so is every other device. A second call
    changes nothing. They equal torch's own to 6e-8 after three batches (measured).
    """
    functional = torch.nn.functional
    if functional.batch_norm not in _updates:
        functional.batch_norm = following(functional.batch_norm)
        _updates.append(functional.batch_norm)
