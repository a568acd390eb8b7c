"""Placement of models on devices: a move that keeps shared weights shared."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shims import batch_norm
from shims.api_errors import NotOnDeviceError
from shims.backends import current

_MOVED = "_shims_moved_to"


def device() -> torch.device:
    """Return this rank's device: `cuda:<local rank>`, `xla:0` (one per rank) or `cpu`.

    On XLA this starts the runtime: call it in the function started by `shims.launch`.
    """
    return current().device()


def device_type() -> str:
    """Return the type of this rank's device: "cuda", "xla" (a TPU by torch_xla), "tpu" (by torch_tpu)
    or "cpu".

    Unlike `device`, this starts no runtime. It may be called anywhere, including before
    `shims.launch`.
    """
    return current().name


def to_device(model: torch.nn.Module) -> torch.nn.Module:
    """Move a model to this rank's device; shared weights stay shared.

    On CUDA and the CPU this is `model.to(device)`. On XLA that call creates new parameters, which
    unties shared weights and leaves an existing optimizer with the old parameters. This function
    ties shared weights again, and refuses a step of such an optimizer.

    Returns:
        The same model.
    """
    return current().to_device(model)


def ddp(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """Wrap a model in DistributedDataParallel for this rank's device.

    Args:
        model: a model on `shims.device()`; see `to_device`.
        **options: options of DistributedDataParallel, except `device_ids` and `output_device`.

    Raises:
        NotOnDeviceError: a parameter or a buffer is on another device.
    """
    if "device_ids" in options or "output_device" in options:
        raise TypeError("shims.ddp() chooses device_ids and output_device itself: leave them out")
    return current().ddp(model, options)


def sync_batch_norm(model: torch.nn.Module) -> torch.nn.Module:
    """Replace every batch norm with one that normalizes over the batches of all ranks.

    On CUDA this is torch.nn.SyncBatchNorm. Elsewhere it is `shims.batch_norm.SyncBatchNorm`, with
    the same values, gradients and state-dict keys. Call it before `to_device` and `ddp`.
    """
    if current().syncs_batch_norm:
        return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return batch_norm.convert(model)


def move_and_tie(model: torch.nn.Module, target: torch.device) -> torch.nn.Module:
    """Call `model.to(target)`, then share tensors again between names that shared one."""
    names = defaultdict(list)
    tensors = {}
    for module in model.modules():
        for tensors_of in (module._parameters, module._buffers):
            for key, tensor in tensors_of.items():
                if tensor is not None:
                    names[id(tensor)].append((tensors_of, key))
                    tensors[id(tensor)] = tensor
    model.to(target)
    replaced = False
    for identity, places in names.items():
        holder, key = places[0]
        moved = holder[key]
        for other, name in places[1:]:
            other[name] = moved
        old = tensors[identity]
        if moved is not old and isinstance(old, torch.nn.Parameter):
            # Only an optimizer created before the move still holds the tensor.
            setattr(old, _MOVED, target)
            replaced = True
    if replaced:
        _refuse_stale_optimizers()
    return model


@functools.cache
def _refuse_stale_optimizers() -> None:
    register_optimizer_step_pre_hook(_refuse_stale)


def _refuse_stale(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            target = getattr(parameter, _MOVED, None)
            if target is not None:
                raise NotOnDeviceError(
                    f"the optimizer was made before the model moved to {target}: it would change "
                    "no weight of the model",
                    "call shims.to_device(model) first, then make the optimizer",
                )
