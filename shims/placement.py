"""Which device a model is on: the move that keeps shared weights shared, and its usual mistake."""

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
    """This rank's device: `cuda:<local rank>`, `xla:0` (each rank has one of its own) or `cpu`.

    On XLA this starts the runtime: call it in the function that `shims.launch` starts.
    """
    return current().device()


def device_type() -> str:
    """The type of this rank's device: "cuda", "xla" (a TPU by torch_xla), "tpu" (by torch_tpu) or "cpu".

    Unlike `device`, this starts no runtime: it may be called anywhere, also before `shims.launch`.
    """
    return current().name


def to_device(model: torch.nn.Module) -> torch.nn.Module:
    """Move a model to this rank's device; weights that are shared stay shared.

    On CUDA and the CPU this is `model.to(device)`. On XLA that call makes new parameters, which
    unties shared weights and leaves an optimizer made before it with the old ones. Here shared
    weights are tied again, and the step of such an optimizer is refused.

    Returns:
        The same model.
    """
    return current().to_device(model)


def ddp(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """Wrap a model in DistributedDataParallel for this rank's device.

    Args:
        model: on `shims.device()`; see `to_device`.
        **options: of DistributedDataParallel, without `device_ids` and `output_device`.

    Raises:
        NotOnDeviceError: a parameter or a buffer is elsewhere.
    """
    if "device_ids" in options or "output_device" in options:
        raise TypeError("shims.ddp() chooses device_ids and output_device itself: leave them out")
    return current().ddp(model, options)


def sync_batch_norm(model: torch.nn.Module) -> torch.nn.Module:
    """Replace every batch norm by one that normalises over the batches of all ranks.

    On CUDA this is torch.nn.SyncBatchNorm; elsewhere `shims.batch_norm.SyncBatchNorm`, with the same
    values, gradients and state-dict keys. Call it before `to_device` and `ddp`.
    """
    if current().syncs_batch_norm:
        return torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return batch_norm.convert(model)


def move_and_tie(model: torch.nn.Module, target: torch.device) -> torch.nn.Module:
    """`model.to(target)`, after which the names that shared a tensor share one again."""
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
            # Only an optimizer made before the move still holds it.
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
